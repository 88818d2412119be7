"""The single steps of a capture, and how long each may take."""

from __future__ import annotations

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from tightship_platform import validation
from tightship_platform.database.locks import locked
from tightship_platform.database.models import Capture, Run, SecondPass, Trace
from tightship_platform.errors import Conflict, NotFound
from tightship_platform.units import NS_PER_S, now_ns, plural
from tightship_platform.vocabulary import CaptureState
from tightship_platform.wire import LEASE_NS, MAX_CAPTURE_ATTEMPTS

REQUEST_TTL_NS = 120 * NS_PER_S
"""A request that nobody leases for this long expires."""
UPLOAD_NS = 600 * NS_PER_S
"""Files that are written may take this long to arrive, counted from the last sign of life."""
ENQUEUE_NS = 30 * NS_PER_S
"""An analysis that was sent off and not begun within this time is sent off again."""
ANALYSIS_NS = 120 * NS_PER_S
"""An analysis that was begun and not heard of for this long is begun again."""
MAX_ANALYSIS_ATTEMPTS = 3
BACK_OFF_NS = 2 * NS_PER_S
"""A lease that was given back is offered again after this time, times the attempt."""
REASON_MAX = 500

RUN_ENDED = "run ended"
"""The reason of captures whose run ended before the trace was complete; other programs look for it."""
CANCELLED = "cancelled by"
"""How the reason of a capture begins that somebody cancelled; a name follows."""
HELD_STATES = (CaptureState.LEASED, CaptureState.ARMED, CaptureState.RECORDING)
"""States in which an agent works on the run's processes: one capture per run at a time."""


def lock(session: Session, key: str) -> Capture:
    """The capture with its row locked until the transaction ends.

    :raises NotFound: there is none of that key.
    """
    found = locked(session, select(Capture).where(Capture.key == key))
    if not found:
        raise NotFound("capture", key[:40], "see `tightship captures`")
    return found[0]


def move(capture: Capture, state: CaptureState, now: int, reason: str | None = None) -> None:
    """Enter a state. A final one gives the lease up.

    :raises Conflict: the capture has ended.
    """
    if CaptureState(capture.state).is_final:
        raise Conflict(f"Capture {capture.key} is {capture.state} already and cannot become {state}")
    capture.state = state.value
    capture.reason = validation.line(reason, REASON_MAX) if reason else None
    # JSON columns notice assignment, not mutation.
    capture.stages = {**capture.stages, state.value: capture.stages.get(state.value, now)}
    if state.is_final:
        capture.lease_expires_ns = None


def cancel(session: Session, key: str, *, by: str, now: int | None = None) -> Capture:
    """End a capture that somebody does not want any more. An agent that holds it drops it with its next report.

    :param by: who that is.
    :raises NotFound: there is none of that key.
    :raises Conflict: it has ended, or all of its traces are stored.
    """
    capture = lock(session, key)
    if CaptureState(capture.state).is_final:
        why = f" ({capture.reason})" if capture.reason else ""
        raise Conflict(f"Capture {key} is {capture.state} already{why}; there is nothing to cancel")
    if capture.state == CaptureState.UPLOADED:
        raise Conflict(f"All traces of capture {key} are stored, and are being analyzed; there is nothing to cancel")
    move(capture, CaptureState.FAILED, now_ns() if now is None else now, f"{CANCELLED} {by}")
    session.flush()
    return capture


def renew(capture: Capture, now: int) -> None:
    """A sign of life of the agent."""
    patience = UPLOAD_NS if capture.state == CaptureState.WRITTEN else LEASE_NS
    capture.lease_expires_ns = now + patience


def release(session: Session, capture: Capture, why: str, now: int) -> None:
    """End an attempt: back to `requested`, or to `failed` when the run has ended or the attempts are used up."""
    run = session.get_one(Run, capture.run_id)
    if run.end_ns is not None:
        move(capture, CaptureState.FAILED, now, RUN_ENDED)
        return
    if capture.attempts >= MAX_CAPTURE_ATTEMPTS:
        move(capture, CaptureState.FAILED, now, f"gave up after {plural(capture.attempts, 'attempt')}: {why}")
        return
    # What the attempt left is void: its files may not mix with those of the next one.
    session.execute(delete(Trace).where(Trace.capture_id == capture.id))
    capture.expected = []
    capture.passes, capture.passes_reason = 1, None
    capture.stages = {CaptureState.REQUESTED.value: capture.requested_ns}
    capture.state = CaptureState.REQUESTED.value
    capture.reason = validation.line(f"attempt {capture.attempts} of {MAX_CAPTURE_ATTEMPTS}: {why}", REASON_MAX)
    capture.expires_ns = max(capture.expires_ns, now + REQUEST_TTL_NS)
    # The last holder stays named, so that its late report is still understood.
    capture.lease_expires_ns = now + BACK_OFF_NS * capture.attempts


def lapse(session: Session, capture: Capture, now: int) -> None:
    """The agent went silent: end its attempt, or the capture when only the files are missing; one of which only second
    passes are missing is complete without them."""
    if capture.state == CaptureState.WRITTEN and capture.passes > 1:
        capture.passes, capture.passes_reason = 1, f"recorded once: the agent on {capture.lease_host} went silent"
        if finish_upload(session, capture, now):
            return
    if capture.state == CaptureState.WRITTEN:
        minutes = UPLOAD_NS // (60 * NS_PER_S)
        move(capture, CaptureState.FAILED, now, f"the trace files did not arrive within {minutes} min")
    else:
        release(session, capture, f"the agent on {capture.lease_host} went silent while {capture.state}", now)


def finish_upload(session: Session, capture: Capture, now: int) -> bool:
    """Enter `uploaded` when every rank of the manifest has its trace, or both; True when that happened just now."""
    if capture.state not in (CaptureState.ARMED, CaptureState.RECORDING, CaptureState.WRITTEN) or not capture.expected:
        return False
    traces = select(Trace.rank).where(Trace.capture_id == capture.id)
    if capture.passes > 1:
        traces = traces.join(SecondPass, SecondPass.trace_id == Trace.id)
    stored = set(session.scalars(traces))
    if not {int(entry["rank"]) for entry in capture.expected} <= stored:
        return False
    move(capture, CaptureState.UPLOADED, now)
    # Whoever completed it sends the analysis off; sweep does so again if nobody begins by then.
    capture.lease_expires_ns = now + ENQUEUE_NS
    return True
