"""Captures of an imported fleet: nobody asked for them and no agent recorded them; their files come from an importer.

A capture enters as `written`: its manifest names each rank's file by its digest. From `uploaded` on it is as any other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform.captures.transitions import finish_upload, lock, renew
from tightship_platform.captures.uploads import StoredTrace
from tightship_platform.database.models import Capture, Run, Trace
from tightship_platform.database.upsert import Row, add_missing
from tightship_platform.errors import Conflict
from tightship_platform.results.imported import ImportedTrace
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import CaptureState
from tightship_platform.wire import CaptureParams

_OPEN = (CaptureState.WRITTEN, CaptureState.UPLOADED)


def expect(
    session: Session,
    run: Run,
    key: str,
    traces: Sequence[ImportedTrace],
    *,
    duration_ns: int,
    by: str,
    now: int | None = None,
) -> list[int]:
    """Make a capture that awaits these files, or find it again; the ranks whose file is not stored.

    Files of an earlier export of the same recording are given up.

    :raises Conflict: the id is another run's, or its earlier files are being analyzed.
    """
    now = now_ns() if now is None else now
    expected: list[dict[str, int | str | None]] = [
        {"rank": one.rank, "pid": None, "host": one.host or None, "sha256": one.sha256}
        for one in sorted(traces, key=lambda one: one.rank)
    ]
    row: Row = {
        "key": key,
        "run_id": run.id,
        "requested_by": by,
        "requested_ns": now,
        "expires_ns": now,
        "params": dataclasses.asdict(CaptureParams(duration_ns=duration_ns, passes=1)),
        "state": CaptureState.WRITTEN.value,
        "stages": {CaptureState.WRITTEN.value: now},
        "expected": expected,
        "passes": 1,
        "attempts": 1,
        "analysis_attempts": 0,
    }
    add_missing(session, Capture, [row])
    capture = lock(session, key)
    if capture.run_id != run.id:
        raise Conflict(f"The id {key} is another run's capture; choose another name with --name")
    stored = {one.rank: one for one in session.scalars(select(Trace).where(Trace.capture_id == capture.id))}
    wanted = {one.rank: one.sha256 for one in traces}
    if capture.expected != expected and capture.state == CaptureState.UPLOADED:
        raise Conflict(f"Capture {key} is being analyzed; import it again when that is done")
    for rank, trace in stored.items():
        if wanted.get(rank) != trace.sha256:
            session.delete(trace)
    session.flush()
    missing = sorted(rank for rank, sha256 in wanted.items() if rank not in stored or stored[rank].sha256 != sha256)
    if missing or capture.expected != expected:
        capture.expected, capture.reason = expected, None
        capture.state, capture.stages = CaptureState.WRITTEN.value, {CaptureState.WRITTEN.value: now}
        capture.analysis_attempts, capture.analysis_started_ns = 0, None
        renew(capture, now)
        finish_upload(session, capture, now)
    session.flush()
    return missing


def check_file(session: Session, key: str, rank: int, sha256: str) -> Capture:
    """Ask before an upload whether the capture awaits this file. One that is stored already is awaited, too.

    :raises NotFound: no such capture.
    :raises Conflict: it has ended, or its manifest does not name this file.
    """
    capture = lock(session, key)
    awaited = any((one["rank"], one.get("sha256")) == (rank, sha256) for one in capture.expected)
    if not awaited:
        raise Conflict(f"Capture {key} does not await this file of rank {rank}; import it again")
    if capture.state not in _OPEN and capture.state != CaptureState.ANALYZED:
        why = f" ({capture.reason})" if capture.reason else ""
        raise Conflict(f"Capture {key} is {capture.state}{why} and takes no trace files; import it again")
    return capture


def file_stored(
    session: Session, key: str, *, rank: int, sha256: str, size_bytes: int, url: str, now: int | None = None
) -> StoredTrace:
    """Record a file that lies in the artifact store under `url`, and complete the capture with its last one.

    :raises TightshipError: as `check_file`.
    """
    now = now_ns() if now is None else now
    capture = check_file(session, key, rank, sha256)
    trace = session.scalar(select(Trace).where(Trace.capture_id == capture.id, Trace.rank == rank))
    if trace is not None:
        return StoredTrace(trace=trace, completed=False)
    host = next(one.get("host") for one in capture.expected if one["rank"] == rank)
    trace = Trace(
        capture_id=capture.id,
        run_id=capture.run_id,
        rank=rank,
        host_name=host,
        url=url,
        sha256=sha256,
        bytes=size_bytes,
        created_ns=now,
        summary={},
    )
    session.add(trace)
    session.flush()
    renew(capture, now)
    return StoredTrace(trace=trace, completed=finish_upload(session, capture, now))
