"""The change that a run is to be launched with: what somebody applies with `tightship run --apply`.

[Note: a change that was asked for]
Elsewhere a server that is away costs a line, and the job runs. Here the user asked for the change, and a run that says
that it has it must have it: so whatever is missing ends the command before the job begins.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tightship_collectors.jobs.run_directory import live_run_dir, replace_file
from tightship_collectors.launch.environment import Offload
from tightship_platform import validation
from tightship_platform.errors import Conflict, Invalid
from tightship_platform.results.action import Action, ToChange
from tightship_platform.results.codec import decode
from tightship_platform.results.overlay import check_overlay, with_overlay
from tightship_platform.settings import Settings, load_settings

ANSWER_S = 5.0
"""Longest wait for the server; nothing of the job has begun."""
PLAN_MAX_BYTES = 4 * 1024 * 1024
PLANS = "plans"
"""Folder of the home where plans lie that runs were launched with."""
_ID = re.compile(r"[0-9]{1,18}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class LaunchedChange:
    """What the launcher changes for one run."""

    action: int
    """Id of the application."""
    workflow: str
    environment: dict[str, str]
    offload: Offload | None
    """The plan that the job is trained by; None: no plan is part of it."""

    def applied_to(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The job's environment with the variables."""
        return with_overlay(environ, self.environment)


def fetch_change(
    opportunity: str,
    *,
    workflow: str | None,
    offload: Offload | None,
    offload_optional: bool = False,
    offload_deadline_s: float | None = None,
) -> LaunchedChange:
    """Ask the server for the change of an opportunity, which it applies if it is open, and say on stderr what it is.

    :param workflow: what the user calls the run; None: as the opportunity's.
    :param offload: a plan that the user gave; it goes before the server's, to which the other two apply.
    :raises Invalid: this is no id, or the server names a variable that no advice may set.
    :raises Conflict: it is of another workflow, or this is part of a run that has begun.
    :raises TightshipError: the server does not answer, or refuses.
    """
    if not _ID.fullmatch(opportunity):
        raise Invalid("--apply", opportunity, "the id of an opportunity; see `tightship opportunities`")
    outer = live_run_dir(os.environ)
    if outer is not None:
        raise Conflict(f"--apply changes nothing inside of run {outer.name}, which has begun; give it to that one")
    from tightship_platform.client import ApiClient

    settings = load_settings()
    with ApiClient(settings, timeout_s=ANSWER_S) as api:
        answer = api.post(f"/opportunities/{int(opportunity)}/launch", {"has_plan": offload is not None})
    action = decode(Action, answer, "action")
    change = action.change
    if change is None or action.state is None:
        raise Conflict(f"The server has no change for opportunity {opportunity}; see `tightship actions`")
    if workflow is not None and workflow != action.workflow and not action.workflow.endswith(f"/{workflow}"):
        raise Conflict(
            f"Opportunity {opportunity} is of the workflow {action.workflow!r}, not {workflow!r}; leave --workflow out"
        )
    check_overlay(change.environment)
    plan = change.plan if offload is None else ""
    if plan:
        path = _stored_plan(settings, action.action, plan)
        offload = Offload(plan=path, optional=offload_optional, deadline_s=offload_deadline_s)
    _say(opportunity, action, change, offload, plan)
    return LaunchedChange(
        action=action.action, workflow=action.workflow, environment=change.environment, offload=offload
    )


def _stored_plan(settings: Settings, action: int, text: str) -> Path:
    content = text.encode()
    if len(content) > PLAN_MAX_BYTES:
        raise Invalid("Size of the plan", len(content), f"at most {PLAN_MAX_BYTES} bytes")
    folder = settings.home / PLANS
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"action-{action}.yaml"
        replace_file(path, content)
    except OSError as error:
        raise Conflict(f"The plan cannot be written to {folder} ({error}); set TIGHTSHIP_HOME") from error
    return path


def _say(opportunity: str, action: Action, change: ToChange, offload: Offload | None, plan: str) -> None:
    parts = [f"{name}={value}" for name, value in change.environment.items()]
    if offload is not None:
        parts.append(f"the offload plan {offload.plan}{_heading(plan)}")
    what = validation.line(", ".join(parts), 600)
    sys.stderr.write(f"tightship: opportunity {int(opportunity)}, action {action.action}: the job runs with {what}\n")
    if change.numerics:
        sys.stderr.write(f"tightship: this changes numbers: {validation.line(change.numerics, 600)}\n")
    sys.stderr.flush()


def _heading(plan: str) -> str:
    """What the server's plan says of itself: for which model and machine it is."""
    first = plan.partition("\n")[0]
    return f" ({first[1:].strip().rstrip('.')})" if first.startswith("#") else ""
