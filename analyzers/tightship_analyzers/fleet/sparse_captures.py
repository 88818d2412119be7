"""Captures that hold almost none of their window: said so, and recorded once more where the run lives."""

from __future__ import annotations

from sqlalchemy.orm import Session

from tightship_platform import captures
from tightship_platform.database.models import Capture
from tightship_platform.errors import TightshipError
from tightship_platform.results.analysis.run import RunAnalysis
from tightship_platform.units import format_ns
from tightship_platform.vocabulary import CaptureState
from tightship_platform.wire import CaptureParams, CaptureRequest

SPARSE_FRAC = 0.1
"""A recording that spans less of its window says nothing about the rest."""
AGAIN = "retry"
"""Who asked for a capture that follows a sparse one; it is not followed by another."""


def sparse_reason(session: Session, capture: Capture, analysis: RunAnalysis | None) -> str | None:
    """That the capture holds almost none of the time that was asked for, and what is done about it; None: it does.

    Of captures by iterations no length is known beforehand.
    """
    spans = [] if analysis is None else [one.summary.recorded_ns for one in analysis.ranks]
    recorded_ns = max((span for span in spans if span is not None), default=None)
    asked_ns = CaptureParams(**capture.params).duration_ns
    if recorded_ns is None or asked_ns is None or recorded_ns > SPARSE_FRAC * asked_ns:
        return None
    said = f"the recording of {format_ns(asked_ns)} holds {format_ns(recorded_ns)} of work"
    return recorded_again(session, capture, said)


def recorded_again(session: Session, capture: Capture, said: str) -> str:
    """Ask for a capture once more where its run lives and it was no retry itself; `said`, and what becomes of it.

    :param capture: locked. Of one that has ended, another worker has said so already.
    """
    if CaptureState(capture.state).is_final:
        return said
    if capture.requested_by == AGAIN:
        return f"{said}, for the second time; capture it while it works"
    params = CaptureParams(**capture.params)
    try:
        again = captures.request(session, CaptureRequest(target=capture.run.key, requested_by=AGAIN, params=params))
    except TightshipError as why:  # the run has ended, many captures wait, or no capture may be such a one any more
        return f"{said}; not recorded again: {why}"
    return f"{said}; capture {again.key} records again"
