"""The stored analysis of a capture."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform.database import ids
from tightship_platform.database.models import Capture, CaptureAnalysis
from tightship_platform.errors import NotFound
from tightship_platform.results.analysis.run import VERSION, RunAnalysis
from tightship_platform.results.packed import unpack
from tightship_platform.vocabulary import CaptureState


def get_analysis(session: Session, capture_key: str) -> RunAnalysis:
    """What the traces of a capture say together.

    :param capture_key: as a person gives it: see [Note: ids that people type] in `database.ids`.
    :raises Ambiguous: several ids begin so.
    :raises NotFound: no such capture, or it has no analysis yet.
    :raises Unpackable: what is stored is damaged, or of another release.
    """
    capture_key = ids.find_key(session, ids.CAPTURE, capture_key)
    wanted = (
        select(Capture.state, CaptureAnalysis.body)
        .outerjoin(CaptureAnalysis, CaptureAnalysis.capture_id == Capture.id)
        .where(Capture.key == capture_key)
    )
    found = session.execute(wanted).one_or_none()
    if found is None:  # it went in between
        raise ids.CAPTURE.not_found(capture_key)
    if found.body is None:
        raise NotFound("analysis of capture", capture_key, _what_to_do(found.state))
    return unpack(RunAnalysis, found.body, version=VERSION, what="analysis")


def is_by_other_rules(session: Session, capture_key: str) -> bool:
    """Whether a capture was analyzed by other rules than the newest analysis of all was, such as by those of an earlier
    release."""
    this = (
        select(CaptureAnalysis.catalogue)
        .join(Capture, CaptureAnalysis.capture_id == Capture.id)
        .where(Capture.key == capture_key)
    )
    newest = select(CaptureAnalysis.catalogue).order_by(CaptureAnalysis.created_ns.desc()).limit(1)
    return session.scalar(this) != session.scalar(newest)


def _what_to_do(state: str) -> str:
    match state:
        case CaptureState.UPLOADED:
            return "its traces are being analyzed; try again in a moment"
        case CaptureState.ANALYZED:
            return "it was analyzed by a release that kept none; have it analyzed again"
        case CaptureState.FAILED | CaptureState.EXPIRED:
            return f"it {'has failed' if state == CaptureState.FAILED else 'has expired'}; capture the run again"
    return f"it is {state}, and its traces are analyzed when they have arrived"
