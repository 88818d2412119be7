"""Asking for a capture."""

from __future__ import annotations

import dataclasses
import secrets

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tightship_platform import validation
from tightship_platform.captures.transitions import HELD_STATES, REQUEST_TTL_NS
from tightship_platform.database import ids
from tightship_platform.database.models import Capture, Run, Workflow
from tightship_platform.errors import Conflict, Invalid, NotFound
from tightship_platform.units import format_ns, now_ns
from tightship_platform.vocabulary import CaptureState, RunSource, RunState
from tightship_platform.wire import (
    MAX_CAPTURE_NS,
    MAX_ITERATIONS,
    MAX_PASSES,
    MIN_CAPTURE_NS,
    CaptureParams,
    CaptureRequest,
)

MAX_WAITING = 10
"""Requests that may wait for one run; more are a mistake or an attack."""


def request(session: Session, wanted: CaptureRequest, *, now: int | None = None) -> Capture:
    """Ask for one trace per rank of a live run. A second request waits for the first, and its `reason` says so.

    :raises NotFound: the target is neither a run nor a workflow.
    :raises Conflict: the run is not running, `tightship run` did not start it, or too many requests wait for it.
    :raises Invalid: the parameters are out of range.
    """
    now = now_ns() if now is None else now
    params = check_params(wanted.params)
    requested_by = validation.name("requested_by", wanted.requested_by)
    run = resolve_run(session, wanted.target)
    if run.state != RunState.RUNNING:
        raise Conflict(f"Run {run.key} of {run.workflow.name!r} is {run.state}; only a running run can be captured")
    refuse_seen(run)
    waiting = _pending(session, run)
    if len(waiting) >= MAX_WAITING:
        raise Conflict(f"{len(waiting)} captures of run {run.key} wait already; see `tightship captures`")
    capture = Capture(
        key=secrets.token_hex(8),
        run=run,
        requested_by=requested_by,
        requested_ns=now,
        expires_ns=now + REQUEST_TTL_NS,
        params=dataclasses.asdict(params),
        state=CaptureState.REQUESTED.value,
        reason=f"waits for capture {waiting[0]}" if waiting else None,
        stages={CaptureState.REQUESTED.value: now},
        expected=[],
        passes=1,
        attempts=0,
        analysis_attempts=0,
    )
    session.add(capture)
    session.flush()
    return capture


def resolve_run(session: Session, target: str) -> Run:
    """The run of that id, or the newest live run of the workflow of that name (a launched one where there is any), or
    else the run that the target, as a person gives it, means: see [Note: ids that people type] in `database.ids`.

    :raises NotFound: there is none; the hint names the live workflows.
    :raises Conflict: the workflow has no live run.
    :raises Ambiguous: several ids of runs begin so.
    """
    validation.name("Target", target)
    run = session.scalar(select(Run).where(Run.key == target))
    if run is not None:
        return run
    of_workflow = select(Run).join(Workflow).where(Workflow.name == target).order_by(Run.start_ns.desc(), Run.id.desc())
    live = of_workflow.where(Run.state == RunState.RUNNING.value).limit(1)
    newest = session.scalar(live.where(Run.source != RunSource.SEEN.value)) or session.scalar(live)
    if newest is not None:
        return newest
    ended = session.scalar(of_workflow.limit(1))
    if ended is not None:
        raise Conflict(f"Workflow {target!r} has no live run; its newest, {ended.key}, is {ended.state}")
    try:
        return ids.find_one(session, ids.RUN, select(Run), target)
    except NotFound:
        raise NotFound("run or workflow", target, _live_hint(session)) from None


def refuse_seen(run: Run) -> None:
    """A run that only its agent saw has none of what captures and stacks need.

    :raises Conflict: it is one; the line says how to start it.
    """
    if run.source == RunSource.SEEN:
        raise Conflict(
            f"Run {run.key} was not started by `tightship run`, so it can be neither captured nor asked for stacks; "
            "start the job as `tightship run -- CMD`"
        )


def check_params(params: CaptureParams) -> CaptureParams:
    """Accept parameters within the bounds of the wire format.

    :raises Invalid: not exactly one of duration and iterations, or out of range.
    """
    if (params.duration_ns is None) == (params.iterations is None):
        raise Invalid(
            "Capture length",
            f"duration_ns={params.duration_ns}, iterations={params.iterations}",
            "exactly one of the two",
        )
    if params.duration_ns is not None and (
        type(params.duration_ns) is not int or not MIN_CAPTURE_NS <= params.duration_ns <= MAX_CAPTURE_NS
    ):
        bounds = f"{format_ns(MIN_CAPTURE_NS)} to {format_ns(MAX_CAPTURE_NS)}"
        raise Invalid("Capture duration", params.duration_ns, f"{bounds} in nanoseconds")
    if params.iterations is not None:
        validation.count("Capture iterations", params.iterations, least=1, most=MAX_ITERATIONS)
    for flag in ("stacks", "shapes", "memory", "insist"):
        if type(getattr(params, flag)) is not bool:
            raise Invalid(f"Capture option {flag}", getattr(params, flag), "true or false")
    validation.count("Capture passes", params.passes, least=1, most=MAX_PASSES)
    return params


def _pending(session: Session, run: Run) -> list[str]:
    """Keys of captures that come before a new one, first the one that is being taken."""
    held = [state.value for state in HELD_STATES]
    rows = session.execute(
        select(Capture.key, Capture.state)
        .where(Capture.run_id == run.id, Capture.state.in_([CaptureState.REQUESTED.value, *held]))
        .order_by(Capture.id)
    ).all()
    return [row.key for row in sorted(rows, key=lambda row: row.state not in held)]


def _live_hint(session: Session) -> str:
    shown = 8
    live = select(Workflow.name).join(Run).where(Run.state == RunState.RUNNING.value).group_by(Workflow.name)
    total = session.scalar(select(func.count()).select_from(live.subquery())) or 0
    names = session.scalars(live.order_by(func.max(Run.start_ns).desc()).limit(shown)).all()
    if not names:
        return "nothing runs now; start a job with `tightship run -- CMD`"
    more = f" and {total - shown} more" if total > shown else ""
    return f"running now: {', '.join(repr(name) for name in names)}{more}"
