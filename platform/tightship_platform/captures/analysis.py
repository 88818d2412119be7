"""The last stage of a capture, which a worker takes."""

from __future__ import annotations

from sqlalchemy.orm import Session

from tightship_platform.captures.transitions import ANALYSIS_NS, lock, move
from tightship_platform.database.models import Capture
from tightship_platform.errors import Conflict
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import CaptureState


def start_analysis(session: Session, key: str, *, now: int | None = None) -> bool:
    """Claim the analysis of a capture. False: there is nothing to do, or another worker is at it.

    Commit before the work begins, so that others see the claim.

    :raises NotFound: no such capture.
    """
    now = now_ns() if now is None else now
    capture = lock(session, key)
    if capture.state != CaptureState.UPLOADED:
        return False
    if capture.analysis_started_ns is not None and (capture.lease_expires_ns or 0) > now:
        return False
    capture.analysis_started_ns = now
    capture.analysis_attempts += 1
    capture.lease_expires_ns = now + ANALYSIS_NS
    return True


def renew_analysis(session: Session, key: str, *, now: int | None = None) -> None:
    """Say that a long analysis goes on; at least once in ANALYSIS_NS, such as after each trace."""
    now = now_ns() if now is None else now
    capture = lock(session, key)
    if capture.state == CaptureState.UPLOADED:
        capture.lease_expires_ns = now + ANALYSIS_NS


def analyzed(session: Session, key: str, *, now: int | None = None) -> Capture:
    """The analysis is done and its results are in this transaction. Said again, it changes nothing.

    :raises Conflict: the capture was not uploaded, or has failed meanwhile.
    """
    now = now_ns() if now is None else now
    capture = lock(session, key)
    if capture.state == CaptureState.ANALYZED:
        return capture
    if capture.state != CaptureState.UPLOADED:
        raise Conflict(f"Capture {key} is {capture.state}; only an uploaded one can become analyzed")
    move(capture, CaptureState.ANALYZED, now)
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
