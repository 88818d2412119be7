"""What agents do with captures: take one, say how far it is, give it back."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row, or_, select
from sqlalchemy.orm import Session, aliased

from tightship_platform import validation
from tightship_platform.captures.transitions import (
    HELD_STATES,
    REASON_MAX,
    REQUEST_TTL_NS,
    finish_upload,
    lapse,
    lock,
    move,
    release,
    renew,
)
from tightship_platform.database.locks import locked
from tightship_platform.database.models import Capture, Run
from tightship_platform.database.reporters import ANYBODY, Reporter, require_host
from tightship_platform.errors import Conflict, Invalid
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import CaptureState
from tightship_platform.wire import (
    LEASE_NS,
    MAX_PASSES,
    CaptureParams,
    CaptureReport,
    ExpectedRank,
    Lease,
    LeaseRequest,
)

MAX_RUNS = 10_000
MAX_RANKS = 100_000
_REPORTABLE = (
    CaptureState.REQUESTED,
    CaptureState.LEASED,
    CaptureState.ARMED,
    CaptureState.RECORDING,
    CaptureState.WRITTEN,
    CaptureState.FAILED,
)


def lease(
    session: Session, request: LeaseRequest, *, reporter: Reporter = ANYBODY, now: int | None = None
) -> list[Lease]:
    """Hand out at most one capture per run that the agent sees alive: the oldest that waits.

    A capture is handed to one agent only; while it is leased, armed or recording, others of its run wait.

    :raises Conflict: captures wait, but all of them for runs of other hosts.
    :raises Forbidden: captures wait, and the reporter may not speak for this host.
    """
    now = now_ns() if now is None else now
    check_lease(request)
    host = request.host
    waiting = _waiting(session, request.runs)
    if not waiting:
        return []
    require_host(session, reporter, host)
    ours = [row.id for row in waiting if row.host_name == host]
    if not ours:
        raise Conflict(f"Run {waiting[0].key} is of {waiting[0].host_name!r}; {host!r} cannot take its captures")
    leases = []
    for run_id in sorted(ours):
        # The run's lock makes "one at a time" hold among agents; always in order of id, so that nobody deadlocks.
        of_run = locked(session, select(Run).where(Run.id == run_id))
        capture = _take_one(session, run_id, host, now) if of_run else None
        if capture is not None:
            [run] = of_run
            leases.append(
                Lease(
                    capture=capture.key,
                    run=run.key,
                    params=CaptureParams(**capture.params),
                    attempt=capture.attempts,
                    lease_expires_ns=now + LEASE_NS,
                )
            )
    return leases


def check_lease(request: LeaseRequest) -> None:
    """Whether the request can be.

    :raises Invalid: its host or one of its runs has no name that can be, or there are too many runs.
    """
    validation.name("Host", request.host)
    if len(request.runs) > MAX_RUNS:
        raise Invalid("Number of runs", len(request.runs), f"at most {MAX_RUNS}")
    for key in request.runs:
        validation.key("Run", key)


def leasable_runs(session: Session, *, now: int | None = None) -> set[str]:
    """Keys of the live runs of which a capture waits that could be leased now."""
    now = now_ns() if now is None else now
    held = aliased(Capture)
    others = select(held.id).where(
        held.run_id == Capture.run_id,
        held.state.in_([state.value for state in HELD_STATES]),
        held.lease_expires_ns >= now,
    )
    found = (
        select(Run.key)
        .join(Capture, Capture.run_id == Run.id)
        .where(
            Capture.state == CaptureState.REQUESTED.value,
            or_(Capture.lease_expires_ns.is_(None), Capture.lease_expires_ns <= now),
            Run.end_ns.is_(None),
            ~others.exists(),
        )
    )
    return set(session.scalars(found))


def _waiting(session: Session, keys: list[str]) -> list[Row[Any]]:
    return list(
        session.execute(
            select(Run.id, Run.key, Run.host_name)
            .join(Capture, Capture.run_id == Run.id)
            .where(Run.key.in_(keys), Run.end_ns.is_(None), Capture.state == CaptureState.REQUESTED.value)
            .distinct()
        )
    )


def _take_one(session: Session, run_id: int, host: str, now: int) -> Capture | None:
    states = [CaptureState.REQUESTED.value, *(state.value for state in HELD_STATES)]
    captures = session.scalars(
        select(Capture)
        .where(Capture.run_id == run_id, Capture.state.in_(states))
        .order_by(Capture.id)
        .execution_options(populate_existing=True)
    ).all()
    for capture in captures:
        if capture.state in HELD_STATES and capture.lease_expires_ns is not None and capture.lease_expires_ns < now:
            locked = lock(session, capture.key)
            if locked.state in HELD_STATES and (locked.lease_expires_ns or 0) < now:
                lapse(session, locked, now)
    if any(capture.state in HELD_STATES for capture in captures):
        return None
    requested = [capture for capture in captures if capture.state == CaptureState.REQUESTED]
    for capture in requested:
        if (capture.lease_expires_ns or 0) > now:
            continue  # given back a moment ago
        move(capture, CaptureState.LEASED, now)
        capture.attempts += 1
        capture.lease_host = host
        renew(capture, now)
        for other in requested:
            if other is not capture:
                other.reason = f"waits for capture {capture.key}"
                other.expires_ns = now + REQUEST_TTL_NS
        session.flush()
        return capture
    return None


def report(
    session: Session, key: str, reported: CaptureReport, *, reporter: Reporter = ANYBODY, now: int | None = None
) -> Capture:
    """Take note of how far the agent is; renews the lease. A late or repeated report changes nothing.

    :raises NotFound: no such capture.
    :raises Conflict: another host holds it.
    :raises Forbidden: the reporter may not speak for this host.
    :raises Invalid: no state that an agent reports, or no reason, or a manifest that cannot be.
    """
    now = now_ns() if now is None else now
    host = validation.name("Host", reported.host)
    if reported.state not in _REPORTABLE:
        raise Invalid("Reported state", reported.state, f"one of {', '.join(_REPORTABLE)}")
    state = CaptureState(reported.state)
    reason = validation.line(reported.reason or "", REASON_MAX)
    if state in (CaptureState.FAILED, CaptureState.REQUESTED) and not reason:
        raise Invalid(f"Reason of {state}", reported.reason, "one line that says why")
    manifest = _manifest(reported.expected, host)
    passes = validation.count("Passes", reported.passes, least=1, most=MAX_PASSES)
    passes_reason = validation.line(reported.passes_reason or "", REASON_MAX) or None
    capture = lock(session, key)
    if capture.lease_host != host:
        holder = f"leased by {capture.lease_host}" if capture.lease_host else "not leased"
        raise Conflict(f"Capture {key} is {holder}; {host} cannot report on it")
    require_host(session, reporter, host)
    if CaptureState(capture.state).rank >= CaptureState.UPLOADED.rank:
        return capture
    if state == CaptureState.FAILED:
        move(capture, state, now, reason)
    elif state == CaptureState.REQUESTED:
        if capture.state != CaptureState.REQUESTED:
            release(session, capture, reason, now)
    else:
        if manifest:
            capture.expected = manifest
        if state == CaptureState.WRITTEN:
            capture.passes, capture.passes_reason = passes, passes_reason
        if state == CaptureState.WRITTEN and not capture.expected:
            raise Invalid("Manifest", [], "the ranks whose files were written")
        if state.rank > CaptureState(capture.state).rank:
            move(capture, state, now)
        if state == CaptureState.LEASED == capture.state:
            capture.reason = reason or None  # what the agent waits for
        renew(capture, now)
        if finish_upload(session, capture, now):
            capture.lease_expires_ns = now  # no upload sends its analysis off: the next sweep does
    session.flush()
    return capture


def _manifest(expected: list[ExpectedRank], host: str) -> list[dict[str, int | str]]:
    if len(expected) > MAX_RANKS:
        raise Invalid("Ranks in the manifest", len(expected), f"at most {MAX_RANKS}")
    entries: list[dict[str, int | str]] = [
        {
            "rank": validation.count("Rank", entry.rank, most=validation.RANK_MAX),
            "pid": validation.count("Pid", entry.pid, least=1, most=validation.INT32_MAX),
            "host": host,
        }
        for entry in expected
    ]
    ranks = sorted(entry.rank for entry in expected)
    if len(set(ranks)) < len(ranks):
        raise Invalid("Manifest", ranks[:20], "each rank once")
    return entries
