"""The files of the trace store, and the rows that name them.

[Note: files that no row names]
The row is the truth. A file reaches the store before its row is written, so an upload that is refused at its end, an
attempt that was taken back and a server that was killed leave files that no row names; they are removed when they are
old enough. Both sides hold the capture's lock: who records a file looks whether it still lies there, and who removes
one looks whether a row names it by now. So no row ever names a file that this module removed.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from tightship_platform import capture_flow
from tightship_platform.artifacts import TRACES, ArtifactStore, Stored
from tightship_platform.capture_flow import StoredTrace
from tightship_platform.database import Database
from tightship_platform.errors import Conflict, NotFound
from tightship_platform.models import Capture, Trace
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import CaptureState

SETTLED_NS = 3600 * NS_PER_S
"""A younger file may be one that is being uploaded or recorded right now."""


@dataclass(kw_only=True)
class Removed:
    """Files that were taken out of the store."""

    files: int = 0
    size_bytes: int = 0


def record(
    session: Session,
    store: ArtifactStore,
    key: str,
    stored: Stored,
    *,
    rank: int,
    pid: int,
    host: str,
    attempt: int | None = None,
    now: int | None = None,
) -> StoredTrace:
    """Write the row of a file that was just stored, and complete the capture with its last one.

    :raises TightshipError: as `capture_flow.trace_stored`.
    :raises Conflict: the file is not there any more; the sender has to send it again.
    """
    capture_flow.lock(session, key)
    if store.size(stored.key) is None:
        raise Conflict(f"The file of rank {rank} of capture {key} was removed before it was recorded; send it again")
    return capture_flow.trace_stored(
        session,
        key,
        rank=rank,
        pid=pid,
        host=host,
        sha256=stored.sha256,
        size_bytes=stored.size_bytes,
        url=stored.key,
        attempt=attempt,
        now=now,
    )


def give_up_old(session: Session, *, keep_days: int, now: int | None = None) -> int:
    """Have the rows of traces older than `keep_days` name no file any more; `remove_unnamed` then takes the files.

    What was found in them stays. Captures that are still under way are left alone.

    :param keep_days: 0: all are kept.
    :returns: how many were given up.
    """
    if keep_days == 0:
        return 0
    now = now_ns() if now is None else now
    final = [state.value for state in CaptureState if state.is_final]
    over = select(Capture.id).where(Capture.state.in_(final))
    old = (
        update(Trace)
        .where(
            Trace.created_ns < now - keep_days * 86_400 * NS_PER_S,
            Trace.removed_ns.is_(None),
            or_(Trace.capture_id.is_(None), Trace.capture_id.in_(over)),
        )
        .values(removed_ns=now)
        .execution_options(synchronize_session=False)
    )
    result: Any = session.execute(old)
    return int(result.rowcount)


def remove_unnamed(database: Database, store: ArtifactStore, *, now: int | None = None) -> Removed:
    """Remove files that no row names, and what dead uploads left half-written, once older than SETTLED_NS.

    Files under names that are not ours are left alone. See [Note: files that no row names].
    """
    before_ns = (now_ns() if now is None else now) - SETTLED_NS
    removed = Removed()
    for run in store.folders(TRACES):
        files = store.files(run)
        with database.session() as session:
            named = set(session.scalars(select(Trace.url).where(Trace.url.in_(files), Trace.removed_ns.is_(None))))
        for file in files:
            if file not in named and _is_ours(file):
                _remove_settled(database, store, file, before_ns, removed)
    return removed


def _is_ours(file: str) -> bool:
    segments = file.split("/")
    return len(segments) == 4 and segments[3].startswith("rank-") and ".json.gz" in segments[3]


def _remove_settled(database: Database, store: ArtifactStore, file: str, before_ns: int, removed: Removed) -> None:
    modified_ns = store.modified_ns(file)
    if modified_ns is None or modified_ns >= before_ns:
        return
    with database.session() as session:
        with contextlib.suppress(NotFound):  # its run was deleted: nobody can record the file any more
            capture_flow.lock(session, file.split("/")[2])
        if session.scalar(select(Trace.id).where(Trace.url == file, Trace.removed_ns.is_(None))) is None:
            size_bytes = store.size(file) or 0
            if store.delete(file):
                removed.files += 1
                removed.size_bytes += size_bytes
