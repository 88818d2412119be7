"""Trace files of a capture as they arrive."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform import validation
from tightship_platform.captures.transitions import finish_upload, lock, renew
from tightship_platform.database.models import Capture, SecondPass, Trace
from tightship_platform.database.reporters import ANYBODY, Reporter, require_host
from tightship_platform.errors import Conflict, NotFound
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import CaptureState
from tightship_platform.wire import MAX_PASSES

_OPEN = (CaptureState.ARMED, CaptureState.RECORDING, CaptureState.WRITTEN)


@dataclass(frozen=True, kw_only=True)
class StoredTrace:
    """What `trace_stored` did."""

    trace: Trace
    completed: bool
    """This file was the last one: the capture is `uploaded` now and its analysis has to be sent off."""


def check_trace(
    session: Session,
    key: str,
    *,
    rank: int,
    pid: int,
    host: str,
    sha256: str,
    attempt: int | None = None,
    recording: int = 1,
    reporter: Reporter = ANYBODY,
) -> Capture:
    """Ask before an upload whether its file is wanted. A file that is stored already is wanted again and stored once.

    :param attempt: the lease under which the file was recorded, as `wire.Lease` numbers it; None: not reported.
    :param recording: 1, or 2 for the trace of the second pass, which comes after the first.
    :raises NotFound: no such capture.
    :raises Conflict: it has ended, is not armed, is held by another host or under another lease, or does not expect
        this rank and process.
    :raises Invalid: a value is not acceptable.
    :raises Forbidden: the reporter may not speak for this host.
    """
    validation.count("Rank", rank, most=validation.RANK_MAX)
    validation.count("Pid", pid, least=1, most=validation.INT32_MAX)
    validation.name("Host", host)
    validation.count("Pass", recording, least=1, most=MAX_PASSES)
    validation.sha256(sha256)
    capture = session.scalar(select(Capture).where(Capture.key == key))
    if capture is None:
        raise NotFound("capture", key[:40], "see `tightship captures`")
    require_host(session, reporter, host)
    if _stored(session, capture, rank, sha256, recording):
        return capture
    if capture.state not in _OPEN:
        why = f" ({capture.reason})" if capture.reason else ""
        raise Conflict(f"Capture {capture.key} is {capture.state}{why} and takes no trace files")
    if capture.lease_host != host:
        raise Conflict(f"Capture {capture.key} is leased by {capture.lease_host}, not by {host}")
    if attempt not in (None, capture.attempts):
        raise Conflict(f"Capture {capture.key} is in attempt {capture.attempts}; this is a file of attempt {attempt}")
    wanted = {int(entry["rank"]): int(entry["pid"]) for entry in capture.expected}
    if wanted.get(rank) != pid:
        raise Conflict(f"Capture {capture.key} does not expect a trace of rank {rank}, pid {pid}")
    if recording > capture.passes:
        raise Conflict(f"Capture {capture.key} records each rank once and takes no second trace of rank {rank}")
    if recording > 1 and _trace(session, capture, rank) is None:
        raise Conflict(f"Capture {capture.key} has no first trace of rank {rank} yet; send it before the second")
    return capture


def trace_stored(
    session: Session,
    key: str,
    *,
    rank: int,
    pid: int,
    host: str,
    sha256: str,
    size_bytes: int,
    url: str,
    attempt: int | None = None,
    recording: int = 1,
    now: int | None = None,
) -> StoredTrace:
    """Record a file that lies in the artifact store under `url`, and complete the capture with its last one.

    :raises TightshipError: as `check_trace`.
    """
    now = now_ns() if now is None else now
    capture = lock(session, key)
    check_trace(session, key, rank=rank, pid=pid, host=host, sha256=sha256, attempt=attempt, recording=recording)
    trace = _trace(session, capture, rank)
    file = trace if recording == 1 or trace is None else trace.second_pass
    if trace is not None and file is not None and file.sha256 == sha256:
        return StoredTrace(trace=trace, completed=False)
    if trace is None:
        trace = file = Trace(capture_id=capture.id, run_id=capture.run_id, rank=rank, summary={})
        session.add(trace)
    elif file is None:
        file = trace.second_pass = SecondPass()
    if isinstance(file, Trace):
        file.pid, file.host_name = pid, host
    file.url, file.sha256, file.bytes, file.created_ns = url, sha256, size_bytes, now
    session.flush()
    renew(capture, now)
    return StoredTrace(trace=trace, completed=finish_upload(session, capture, now))


def _trace(session: Session, capture: Capture, rank: int) -> Trace | None:
    return session.scalar(select(Trace).where(Trace.capture_id == capture.id, Trace.rank == rank))


def _stored(session: Session, capture: Capture, rank: int, sha256: str, recording: int) -> bool:
    trace = _trace(session, capture, rank)
    file = trace if recording == 1 or trace is None else trace.second_pass
    return file is not None and file.sha256 == sha256
