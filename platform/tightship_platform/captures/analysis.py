"""The last stage of a capture, which workers take: each rank's trace, then all of them together.

[Note: pieces of an analysis] A message to the workers says only that a capture has something to do. What that is, a
worker claims here: a trace that nobody analyzes, or, when all traces are done, joining them. A piece is held by a lease
that its worker renews; a worker that dies leaves its piece to the next message, which the sweep sends. So a message
that comes twice, or late, does no harm, and nothing that lives is begun a second time. Only attempts that died count.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform.captures.transitions import (
    ANALYSIS_NS,
    ENQUEUE_NS,
    MAX_ANALYSIS_ATTEMPTS,
    REASON_MAX,
    lock,
    move,
)
from tightship_platform.database.models import Capture, Trace
from tightship_platform.errors import Conflict
from tightship_platform.results.analysis.rank import TraceSummary
from tightship_platform.results.codec import as_json
from tightship_platform.units import now_ns
from tightship_platform.validation import line
from tightship_platform.vocabulary import CaptureState


@dataclass(frozen=True, kw_only=True)
class Work:
    """A claimed piece of an analysis."""

    capture: str
    rank: int | None
    """Whose trace is to be analyzed; None: the analyzed traces are to be joined."""


def claim_work(session: Session, key: str, *, now: int | None = None) -> Work | None:
    """Claim the next piece. None: there is nothing to do, or others are at it.

    Commit before the work begins, so that others see the claim.

    :raises NotFound: no such capture.
    """
    now = now_ns() if now is None else now
    capture = lock(session, key)
    if capture.state != CaptureState.UPLOADED:
        return None
    waiting = _waiting(session, capture)
    for trace in waiting:
        if (trace.analysis_lease_ns or 0) <= now and trace.analysis_attempts < MAX_ANALYSIS_ATTEMPTS:
            trace.analysis_lease_ns = now + ANALYSIS_NS
            trace.analysis_attempts += 1
            capture.lease_expires_ns = now + ANALYSIS_NS
            return Work(capture=key, rank=trace.rank)
    if waiting or (capture.analysis_started_ns is not None and (capture.lease_expires_ns or 0) > now):
        return None
    capture.analysis_started_ns = now
    capture.analysis_attempts += 1
    capture.lease_expires_ns = now + ANALYSIS_NS
    return Work(capture=key, rank=None)


def renew_work(session: Session, work: Work, *, now: int | None = None) -> None:
    """Say that a piece is being worked on; at least once in ANALYSIS_NS."""
    now = now_ns() if now is None else now
    capture = lock(session, work.capture)
    if capture.state != CaptureState.UPLOADED:
        return
    capture.lease_expires_ns = now + ANALYSIS_NS
    for trace in _waiting(session, capture):
        if trace.rank == work.rank:
            trace.analysis_lease_ns = now + ANALYSIS_NS


def give_work_back(session: Session, work: Work, *, now: int | None = None) -> None:
    """End an attempt that could not begin, such as while the artifact store is away: it does not count."""
    now = now_ns() if now is None else now
    capture = lock(session, work.capture)
    if capture.state != CaptureState.UPLOADED:
        return
    capture.lease_expires_ns = now + ENQUEUE_NS
    if work.rank is None:
        capture.analysis_started_ns = None
        capture.analysis_attempts -= 1
    for trace in _waiting(session, capture):
        if trace.rank == work.rank:
            trace.analysis_lease_ns = now + ENQUEUE_NS
            trace.analysis_attempts -= 1


def trace_analyzed(
    session: Session,
    work: Work,
    *,
    summary: TraceSummary | None = None,
    error: str | None = None,
    now: int | None = None,
) -> Trace:
    """Note that a trace is analyzed, or why that is impossible; the result is in this transaction.

    :raises Conflict: the capture has ended meanwhile, or another worker was quicker.
    """
    now = now_ns() if now is None else now
    capture = lock(session, work.capture)
    for trace in _waiting(session, capture) if capture.state == CaptureState.UPLOADED else ():
        if trace.rank == work.rank:
            trace.analyzed_ns, trace.analysis_lease_ns = now, None
            trace.summary = {} if summary is None else as_json(summary)
            trace.error = None if error is None else line(error, REASON_MAX)
            capture.lease_expires_ns = now
            return trace
    raise Conflict(
        f"The trace of rank {work.rank} of capture {work.capture} is analyzed already, or not wanted any more"
    )


def analyzed(session: Session, key: str, *, reason: str | None = None, now: int | None = None) -> Capture:
    """The analysis is done and its results are in this transaction. Said again, it changes nothing.

    :param reason: what keeps it from saying much, one line.
    :raises Conflict: the capture was not uploaded, or has failed meanwhile.
    """
    now = now_ns() if now is None else now
    capture = lock(session, key)
    if capture.state == CaptureState.ANALYZED:
        return capture
    if capture.state != CaptureState.UPLOADED:
        raise Conflict(f"Capture {key} is {capture.state}; only an uploaded one can become analyzed")
    move(capture, CaptureState.ANALYZED, now, reason)
    session.flush()
    return capture


def fail(session: Session, key: str, reason: str, *, now: int | None = None) -> Capture:
    """End a capture with a reason. One that has ended stays as it is."""
    now = now_ns() if now is None else now
    capture = lock(session, key)
    if not CaptureState(capture.state).is_final:
        move(capture, CaptureState.FAILED, now, reason)
        session.flush()
    return capture


def analyze_again(session: Session, key: str, *, now: int | None = None) -> Capture:
    """Have the stored traces of a capture analyzed once more, as after an upgrade; its findings stay until then.

    :raises Conflict: the capture is under way, or none of its traces is stored any more.
    """
    now = now_ns() if now is None else now
    capture = lock(session, key)
    traces = session.scalars(select(Trace).where(Trace.capture_id == capture.id)).all()
    stored = [trace for trace in traces if trace.removed_ns is None]
    if not CaptureState(capture.state).is_final:
        raise Conflict(f"Capture {key} is {capture.state}; its traces are analyzed when they are there")
    if not stored:
        raise Conflict(f"No trace file of capture {key} is stored any more; capture the workflow again")
    capture.state, capture.reason = CaptureState.UPLOADED.value, None
    capture.analysis_attempts, capture.analysis_started_ns, capture.lease_expires_ns = 0, None, now
    for trace in stored:
        trace.analyzed_ns, trace.error, trace.analysis_attempts, trace.analysis_lease_ns = None, None, 0, None
    session.flush()
    return capture


def count_waiting(session: Session, key: str) -> int:
    """Traces of a capture that are not analyzed yet."""
    return len(_waiting(session, lock(session, key)))


def due_work(session: Session, capture: Capture, now: int) -> bool:
    """Whether an uploaded capture, whose row is locked, has a piece that nobody holds. A trace whose attempts have all
    died is given up; a capture whose joining has, fails."""
    if (capture.lease_expires_ns or 0) > now:
        return False
    waiting = _waiting(session, capture)
    for trace in waiting:
        if (trace.analysis_lease_ns or 0) <= now and trace.analysis_attempts >= MAX_ANALYSIS_ATTEMPTS:
            trace.analyzed_ns, trace.analysis_lease_ns = now, None
            trace.error = _never_ended(f"the analysis of rank {trace.rank}", trace.analysis_attempts)
    if not waiting and capture.analysis_attempts >= MAX_ANALYSIS_ATTEMPTS:
        move(capture, CaptureState.FAILED, now, _never_ended("its analysis", capture.analysis_attempts))
        return False
    capture.analysis_started_ns = None
    capture.lease_expires_ns = now + ENQUEUE_NS
    return True


def _never_ended(what: str, attempts: int) -> str:
    return f"{what} was begun {attempts} times and never ended; the worker's log says more"


def _waiting(session: Session, capture: Capture) -> list[Trace]:
    """Traces that are stored and not analyzed, by rank."""
    wanted = select(Trace).where(
        Trace.capture_id == capture.id, Trace.analyzed_ns.is_(None), Trace.removed_ns.is_(None)
    )
    return list(session.scalars(wanted.order_by(Trace.rank).execution_options(populate_existing=True)))
