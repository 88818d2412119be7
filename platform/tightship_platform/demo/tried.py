"""Does the advice hold? The demo applies it, runs the changed jobs, and waits for what the platform makes of them."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Collection
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tightship_platform.client import ApiClient
from tightship_platform.demo.fixes import FIXES, Fix, write_fixed
from tightship_platform.demo.own_platform import Platform, job_command, job_environment
from tightship_platform.errors import TightshipError
from tightship_platform.results.action import Action
from tightship_platform.results.codec import decode
from tightship_platform.results.opportunity import Opportunity
from tightship_platform.settings import Settings
from tightship_platform.vocabulary import OpportunityState

STEP_PERIOD_S = 2
"""Jobs of half a minute have enough periods of steps for a comparison."""
SETTLE_S = 120.0
"""Longest wait for a verdict: the run is accounted for and compared within half a minute."""


def try_fixes(
    api: ApiClient,
    settings: Settings,
    examples: Path,
    platform: Platform,
    console: Console,
    *,
    workflows: Collection[str],
    seconds: int,
) -> list[Action]:
    """Apply each fix whose opportunity was found, run its job, and wait for the verdicts; the actions, in order.

    :param workflows: jobs that were run.
    :param seconds: training time of each job.
    :raises TightshipError: a job failed, or the platform ended.
    """
    made: list[Action] = []
    with Progress(
        TextColumn("{task.description:<22}"),
        BarColumn(bar_width=28),
        TimeElapsedColumn(),
        TextColumn("{task.fields[stage]}"),
        console=console,
    ) as progress:
        for fix in (one for one in FIXES if one.workflow in workflows):
            bar = progress.add_task(fix.workflow, total=None, stage=fix.what)
            number = _opportunity(api, fix)
            if number is None:
                progress.update(bar, total=1, completed=1, stage=f"{fix.rule} was not found: nothing to apply")
                continue
            earlier = next((one for one in made if one.opportunity == number), None)
            if earlier is not None:
                _wait(lambda one=earlier: _is_compared(_action(api, one)), platform)  # type: ignore[misc]
                made[made.index(earlier)] = _action(api, earlier)
                api.post(f"/opportunities/{number}/reopen", {"reason": f"reverted: {earlier.reason}"})
            made.append(decode(Action, api.post(f"/opportunities/{number}/apply", {"reason": fix.what})))
            _run(fix, write_fixed(examples, settings.home / "fixed", fix), settings, platform, seconds)
            progress.update(bar, total=1, completed=1)
        bar = progress.add_task("verdicts", total=None, stage="accounts and comparisons")
        _wait(lambda: all(_is_compared(_action(api, one)) for one in made), platform)
        progress.update(bar, total=1, completed=1, stage="done")
    return [one if one.state != OpportunityState.APPLIED else _action(api, one) for one in made]


def _opportunity(api: ApiClient, fix: Fix) -> int | None:
    found = decode(list[Opportunity], api.get("/opportunities"))
    return next((one.opportunity for one in found if one.workflow == fix.workflow and fix.rule in one.rules), None)


def _action(api: ApiClient, one: Action) -> Action:
    found = decode(list[Action], api.get("/actions", {"opportunity": one.opportunity}))
    return next((action for action in found if action.action == one.action), one)


def _is_compared(action: Action) -> bool:
    return action.state != OpportunityState.APPLIED or action.verification is not None


def _wait(what: Callable[[], bool], platform: Platform) -> None:
    """Until it is so, or for SETTLE_S: what has no verdict by then is shown with what it waits for."""
    deadline = time.monotonic() + SETTLE_S
    while not what() and time.monotonic() < deadline:
        platform.check()
        time.sleep(1.0)


def _run(fix: Fix, script: Path, settings: Settings, platform: Platform, seconds: int) -> None:
    log = settings.home / f"{fix.workflow}-fixed.log"
    command = job_command(fix.workflow, fix.team, script, seconds)
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=job_environment(settings), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        while process.poll() is None:
            platform.check()
            time.sleep(0.5)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait()
    if process.returncode != 0:
        raise TightshipError(f"The changed job {fix.workflow} ended with code {process.returncode}; see {log}")
