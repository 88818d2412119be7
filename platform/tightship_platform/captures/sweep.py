"""Ends, or revives, what got stuck. Nothing here depends on a message having arrived."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform.captures.analysis import due_work
from tightship_platform.captures.transitions import HELD_STATES, REQUEST_TTL_NS, RUN_ENDED, lapse, lock, move
from tightship_platform.database.models import Capture, Run
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import CaptureState


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """Keys of the captures that `sweep` touched."""

    expired: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    enqueued: list[str] = field(default_factory=list)


def sweep(session: Session, enqueue: Callable[[str], None], *, now: int | None = None) -> SweepResult:
    """Look at every unfinished capture: expire, take back, fail, or send its analysis off (`enqueue(key)`).

    What `enqueue` raises ends the sweep and rolls it back; the next one finds the same captures.
    """
    now = now_ns() if now is None else now
    result = SweepResult()
    final = [state.value for state in CaptureState if state.is_final]
    keys = session.scalars(select(Capture.key).where(Capture.state.not_in(final)).order_by(Capture.id)).all()
    for key in keys:
        capture = lock(session, key)
        before = capture.state
        if before == CaptureState.REQUESTED:
            _requested(session, capture, now)
        elif before == CaptureState.UPLOADED:
            if due_work(session, capture, now):
                enqueue(key)
                result.enqueued.append(key)
        elif not CaptureState(before).is_final and (capture.lease_expires_ns or 0) < now:
            lapse(session, capture, now)
            if capture.state == CaptureState.UPLOADED:
                enqueue(key)
        session.flush()
        if capture.state != before:
            {
                CaptureState.EXPIRED: result.expired,
                CaptureState.FAILED: result.failed,
                CaptureState.REQUESTED: result.released,
                CaptureState.UPLOADED: result.enqueued,
            }[CaptureState(capture.state)].append(key)
    return result


def run_ended(session: Session, run: Run, *, now: int | None = None) -> None:
    """Fail what waits for a run that has ended. What an agent still holds is the agent's to report."""
    now = now_ns() if now is None else now
    waiting = select(Capture.key).where(Capture.run_id == run.id, Capture.state == CaptureState.REQUESTED.value)
    for key in session.scalars(waiting.order_by(Capture.id)).all():
        capture = lock(session, key)
        if capture.state == CaptureState.REQUESTED:
            move(capture, CaptureState.FAILED, now, RUN_ENDED)


def _requested(session: Session, capture: Capture, now: int) -> None:
    run = session.get_one(Run, capture.run_id)
    if run.end_ns is not None:
        move(capture, CaptureState.FAILED, now, RUN_ENDED)
    elif _is_held(session, run):
        capture.expires_ns = now + REQUEST_TTL_NS
    elif capture.expires_ns < now:
        waited = (now - capture.requested_ns) // NS_PER_S
        before = f" after {capture.reason}" if capture.attempts else ""
        where = f" on {run.host_name}" if run.host_name else ""
        move(
            capture,
            CaptureState.EXPIRED,
            now,
            f"no agent asked for it within {waited} s{before}; is `tightship agent` running{where}?",
        )


def _is_held(session: Session, run: Run) -> bool:
    held = select(Capture.id).where(Capture.run_id == run.id, Capture.state.in_([s.value for s in HELD_STATES]))
    return session.scalar(held.limit(1)) is not None
