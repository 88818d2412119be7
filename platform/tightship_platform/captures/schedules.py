"""Captures that are asked for again and again."""

from __future__ import annotations

import dataclasses

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tightship_platform.captures.requests import check_params, request
from tightship_platform.database.audit import audit
from tightship_platform.database.models import Capture, CaptureSchedule, Run, Workflow
from tightship_platform.errors import Conflict, Invalid, NotFound
from tightship_platform.units import NS_PER_S, format_ns, now_ns
from tightship_platform.vocabulary import CaptureState, RunSource, RunState
from tightship_platform.wire import CaptureParams, CaptureRequest

SCHEDULE = "schedule"
MIN_EVERY_NS = 60 * NS_PER_S
MAX_EVERY_NS = 30 * 86_400 * NS_PER_S
SETTLE_NS = 60 * NS_PER_S
"""A run is left alone for this long first: its start shows nothing of its steady state."""


def set_schedule(
    session: Session, workflow: str, every_ns: int | None, params: CaptureParams | None = None
) -> CaptureSchedule | None:
    """Ask for a capture of every live run of a workflow at this interval; None ends that.

    :raises NotFound: no such workflow.
    :raises Invalid: interval or parameters out of range.
    """
    found = session.scalar(select(Workflow).where(Workflow.name == workflow))
    if found is None:
        raise NotFound("workflow", workflow[:200], "see `tightship runs`")
    schedule = session.scalar(select(CaptureSchedule).where(CaptureSchedule.workflow_id == found.id))
    if every_ns is None:
        if schedule is not None:
            session.delete(schedule)
            session.flush()
        return None
    if type(every_ns) is not int or not MIN_EVERY_NS <= every_ns <= MAX_EVERY_NS:
        raise Invalid("Schedule", every_ns, f"{format_ns(MIN_EVERY_NS)} to {format_ns(MAX_EVERY_NS)} in nanoseconds")
    checked = dataclasses.asdict(check_params(params or CaptureParams()))
    if schedule is None:
        schedule = CaptureSchedule(workflow_id=found.id, every_ns=every_ns, params=checked, enabled=True)
        session.add(schedule)
    schedule.every_ns, schedule.params, schedule.enabled = every_ns, checked, True
    session.flush()
    return schedule


def request_scheduled_captures(session: Session, *, now: int | None = None) -> list[str]:
    """Ask for what the schedules are due; returns the keys. A run with a scheduled capture under way is left alone."""
    now = now_ns() if now is None else now
    asked = []
    due = (
        select(CaptureSchedule, Run)
        .join(Run, Run.workflow_id == CaptureSchedule.workflow_id)
        .where(CaptureSchedule.enabled, Run.state == RunState.RUNNING.value, Run.source != RunSource.SEEN.value)
        .order_by(Run.id)
    )
    for schedule, run in session.execute(due).all():
        if _is_due(session, schedule, run, now):
            wanted = CaptureRequest(target=run.key, params=CaptureParams(**schedule.params), requested_by=SCHEDULE)
            try:
                capture = request(session, wanted, now=now)
                audit(session, SCHEDULE, "capture.request", capture.key, run=run.key, params=capture.params)
                asked.append(capture.key)
            except Conflict:  # too much waits for this run already; the others have their turn all the same
                continue
    return asked


def _is_due(session: Session, schedule: CaptureSchedule, run: Run, now: int) -> bool:
    final = [state.value for state in CaptureState if state.is_final]
    own = select(Capture).where(Capture.run_id == run.id, Capture.requested_by == SCHEDULE)
    last = session.scalar(own.with_only_columns(func.max(Capture.requested_ns)))
    if last is None:
        return run.start_ns + min(SETTLE_NS, schedule.every_ns) <= now
    pending = session.scalar(own.with_only_columns(Capture.id).where(Capture.state.not_in(final)).limit(1))
    return pending is None and last + schedule.every_ns <= now
