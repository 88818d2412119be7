"""A live run of this host: its processes with their stacks, and how a run that has ended died."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from tightship_analyzers.hangs.stacks import collective_of, judge_stacks, own_place
from tightship_collectors.jobs.attribution import Attribution
from tightship_collectors.jobs.live_run import HostRun, RankView
from tightship_collectors.jobs.ranks import ancestors_of
from tightship_collectors.jobs.stacks import Frame, NoStacks, read_stacks
from tightship_platform.results.run import RunDetail
from tightship_platform.results.why import ProcessStack, RunWhy
from tightship_platform.units import format_ns, now_ns, plural
from tightship_platform.vocabulary import LIVE, RunState

MAX_HELPERS = 16
"""Loader workers and other children of ranks that are looked at."""
_WORKER = "/torch/utils/data/_utils/worker.py"


def live_run(runtime_dir: Path, name: str) -> HostRun | None:
    """The live run of this host whose id begins so; None: there is none, or several."""
    found = [run.view for run in Attribution(runtime_dir).update() if run.view.run.startswith(name)]
    return found[0] if len(found) == 1 else None


def why_it_hangs(run: HostRun, *, native: bool = False) -> RunWhy:
    """What the processes of a live run are at.

    :param native: also frames of C and C++.
    """
    ranks = [view for view in run.ranks if view.is_rank]
    pids = {view.pid for view in ranks}
    processes = [_process(view.pid, "rank", view, native) for view in ranks]
    known = {view.pid for view in run.ranks}
    helpers = [pid for pid in run.pids if pid not in known and (not pids or pids & ancestors_of(pid))]
    processes += [_process(pid, "other", None, native) for pid in helpers[:MAX_HELPERS]]
    verdict, cause = judge_stacks(processes)
    since = _since(ranks)
    return RunWhy(run=run.run, state=RunState.RUNNING, verdict=f"{since}{verdict}", cause=cause, processes=processes)


def _since(ranks: Sequence[RankView]) -> str:
    lasts = [view.last_step_ns for view in ranks if view.last_step_ns]
    return f"The last step ended {format_ns(now_ns() - max(lasts))} ago. " if lasts else ""


def _process(pid: int, role: str, view: RankView | None, native: bool) -> ProcessStack:
    reason: str | None = None
    runs: bool | None = None
    frames: tuple[Frame, ...] = ()
    try:
        main = read_stacks(pid, native=native)[0]
        frames, runs = main.frames, main.runs
    except NoStacks as error:
        reason = str(error)
    except IndexError:
        reason = "it has no Python thread"
    if role != "rank" and any(frame.file.endswith(_WORKER) for frame in frames):
        role = "worker"
    return ProcessStack(
        rank=view.rank if view else None,
        role=role,
        pid=pid,
        steps=view.steps if view else None,
        last_step_ns=view.last_step_ns if view else None,
        collective=collective_of(frames),
        place=own_place(frames),
        runs=runs,
        stack=[str(frame) for frame in frames],
        reason=reason,
    )


def why_it_ended(run: RunDetail) -> RunWhy:
    """How a run died, as far as its launcher saw it; of one that lives elsewhere, where to ask."""
    lasted = format_ns((run.end_ns or run.last_seen_ns) - run.start_ns)
    if run.state == RunState.RUNNING:
        verdict = f"It runs on {run.host or 'another host'}, where its stacks can be read."
        cause = f"Run `tightship why {run.run}` there, as its user or as root."
    elif run.fleet != LIVE:
        verdict = f"It is of the imported fleet {run.fleet}; its state is {run.state}, after {lasted}."
        cause = run.reason or "The import does not say more."
    elif run.state == RunState.FINISHED:
        verdict, cause = f"It finished after {lasted} with exit code 0.", "Nothing went wrong that its launcher saw."
    elif run.state == RunState.LOST:
        verdict = f"It was lost after {lasted}: no heartbeat and no end record arrived."
        cause = run.reason or "Unknown: its host, agent or network went away with it."
    else:
        verdict, cause = f"It failed after {lasted}{_exit(run.exit_code)}.", _cause_of_death(run)
    return RunWhy(run=run.run, state=run.state, verdict=verdict, cause=cause, processes=[])


def _cause_of_death(run: RunDetail) -> str:
    parts = []
    if run.oom_kills:
        parts.append(f"The kernel killed {plural(run.oom_kills, 'process', 'processes')} of it for lack of memory.")
    if run.error:
        parts.append(f"The first uncaught exception: {run.error}.")
    if not parts and run.reason:
        parts.append(f"{run.reason}.")
    return " ".join(parts) or "Unknown: no exception was uncaught; its own output says more."


def _exit(exit_code: int | None) -> str:
    if exit_code is None:
        return ""
    if 128 < exit_code < 128 + signal.NSIG:
        try:
            return f" by {signal.Signals(exit_code - 128).name}"
        except ValueError:
            return f" by signal {exit_code - 128}"
    return f" with exit code {exit_code}"
