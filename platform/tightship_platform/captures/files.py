"""The files of the trace store, and the rows that name them.

[Note: files that no row names]
The row is the truth. A file reaches the store before its row is written, so an upload that is refused at its end, an
attempt that was taken back and a server that was killed leave files that no row names; they go when they are as old as
traces are kept, or at a person's word. Both sides hold the capture's lock: who records a file looks whether it still
lies there, and who removes one looks whether a row names it by now. So no row ever names a file that this module
removed.

[Note: what a sweep may remove]
Only what is provably ours: the store carries this installation's id (see `store_owner`), and the file is a half-written
upload, or of a capture that this database has. Files of captures that it does not have stay: they may be all that is
left of what a restored database has lost. So may a complete file that no row names, of a capture that was under way at
the time of the backup; that is why an hour is not enough for it. A sweep that would take more than half of the complete
files is a mistake more often than not (a clock that jumped, a mistyped TIGHTSHIP_KEEP_TRACE_DAYS): it does nothing
until a person orders it (`tightship db sweep-traces`). Files of a run that was removed are nobody's, how many there
may be: an upload that was under way leaves them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, and_, not_, or_, select, update
from sqlalchemy.orm import Session

from tightship_platform.captures import store_owner
from tightship_platform.captures.artifact_store import PARTIAL, TRACES, ArtifactStore, Stored
from tightship_platform.captures.imported import file_stored
from tightship_platform.captures.transitions import lock
from tightship_platform.captures.uploads import StoredTrace, trace_stored
from tightship_platform.database import removed_runs
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Capture, Run, SecondPass, Trace
from tightship_platform.errors import Conflict, NotFound
from tightship_platform.units import NS_PER_S, now_ns, plural
from tightship_platform.vocabulary import CaptureState

SETTLED_NS = 3600 * NS_PER_S
"""A younger file may be one that is being uploaded or recorded right now."""
FEW_FILES = 10
"""A sweep that removes no more than these needs no person, whatever their share."""
_COMPLETE = ".json.gz"
_NAME = re.compile(rf"rank-\d+-[0-9a-f]{{64}}{re.escape(_COMPLETE)}({re.escape(PARTIAL)}[0-9a-f]{{32}})?", re.ASCII)


@dataclass(kw_only=True)
class Removable:
    """The outcome of a look through the store: see [Note: what a sweep may remove]."""

    files: list[str] = field(default_factory=list)
    """Complete files of our captures that no row names, or whose trace is older than they are kept."""
    partials: list[str] = field(default_factory=list)
    """Half-written files of dead uploads."""
    deleted: list[str] = field(default_factory=list)
    """Files of runs that were removed."""
    kept: int = 0
    """Complete files that stay, those of unknown captures included."""
    unknown: int = 0
    """Complete files of captures that this database does not have."""

    @property
    def is_most(self) -> bool:
        """Whether too large a part of the store would go for a sweep that nobody ordered."""
        return len(self.files) > max(FEW_FILES, self.kept)


@dataclass(kw_only=True)
class Removed:
    """Files that were taken out of the store."""

    files: int = 0
    size_bytes: int = 0
    traces: int = 0
    """Traces that were given up because of their age."""


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
    recording: int = 1,
    now: int | None = None,
) -> StoredTrace:
    """Write the row of a file that was just stored, and complete the capture with its last one.

    :raises TightshipError: as `uploads.trace_stored`.
    :raises Conflict: the file is not there any more; the sender has to send it again.
    """
    lock(session, key)
    _require_file(store, key, stored, rank)
    return trace_stored(
        session,
        key,
        rank=rank,
        pid=pid,
        host=host,
        sha256=stored.sha256,
        size_bytes=stored.size_bytes,
        url=stored.key,
        attempt=attempt,
        recording=recording,
        now=now,
    )


def record_imported(
    session: Session, store: ArtifactStore, key: str, stored: Stored, *, rank: int, now: int | None = None
) -> StoredTrace:
    """As `record`, of a file that an importer sent.

    :raises TightshipError: as `imported.file_stored`.
    :raises Conflict: the file is not there any more; the sender has to send it again.
    """
    lock(session, key)
    _require_file(store, key, stored, rank)
    return file_stored(
        session, key, rank=rank, sha256=stored.sha256, size_bytes=stored.size_bytes, url=stored.key, now=now
    )


def _require_file(store: ArtifactStore, key: str, stored: Stored, rank: int) -> None:
    if store.size(stored.key) is None:
        raise Conflict(f"The file of rank {rank} of capture {key} was removed before it was recorded; send it again")


def find_removable(
    database: Database,
    store: ArtifactStore,
    *,
    keep_days: int,
    unnamed_ns: int | None = SETTLED_NS,
    now: int | None = None,
) -> Removable:
    """Look for what a sweep may remove, older than SETTLED_NS. Removes nothing.

    :param keep_days: days for which the files of traces are kept; 0: for ever.
    :param unnamed_ns: age from which complete files that no row names may go; None: they stay.
    :raises Conflict: the store is not this installation's.
    """
    now = now_ns() if now is None else now
    with database.session() as session:
        store_owner.require_own(session, store)
    found = Removable()
    for run in store.folders(TRACES):
        files = [file for file in store.files(run) if _is_trace(file)]
        with database.session() as session:
            if removed_runs.among(session, [run.split("/")[1]]):
                found.deleted += [file for file in files if _is_settled(store, file, now)]
                continue
            kept, named = _named(session, files, keep_days, now), _named(session, files, 0, now)
            captures = _captures(session, run.split("/")[1])
        for file in files:
            if not file.endswith(_COMPLETE):
                if _is_settled(store, file, now):
                    found.partials.append(file)
            elif (
                file not in kept
                and file.split("/")[2] in captures
                and _is_settled(store, file, now, SETTLED_NS if file in named else unnamed_ns)
            ):
                found.files.append(file)
            else:
                found.kept += 1
                found.unknown += file.split("/")[2] not in captures
    return found


def remove(
    database: Database, store: ArtifactStore, removable: Removable, *, keep_days: int, now: int | None = None
) -> Removed:
    """Give up traces that are older than they are kept, and remove what `find_removable` found and is so still.

    :raises Conflict: the store is not this installation's.
    """
    now = now_ns() if now is None else now
    with database.session() as session:
        store_owner.require_own(session, store)
        removed = Removed(traces=give_up_old(session, keep_days=keep_days, now=now))
    for file in (*removable.partials, *removable.deleted):
        if _is_settled(store, file, now):
            _delete(store, file, removed)
    for file in removable.files:
        if _is_settled(store, file, now):
            _remove_unnamed(database, store, file, removed)
    return removed


def sweep(database: Database, store: ArtifactStore, *, keep_days: int, now: int | None = None) -> Removed:
    """Remove what is older than traces are kept, and half-written files. See [Note: what a sweep may remove].

    :raises Conflict: the store is not this installation's, or more than half of it would go; nothing was removed.
    """
    unnamed_ns = max(SETTLED_NS, keep_days * 86_400 * NS_PER_S) if keep_days else None
    removable = find_removable(database, store, keep_days=keep_days, unnamed_ns=unnamed_ns, now=now)
    if removable.is_most:
        count, total = len(removable.files), plural(len(removable.files) + removable.kept, "trace file")
        raise Conflict(
            f"{count} of the {total} in {store.shown_url} would go, which is more than half; "
            "check the clock and TIGHTSHIP_KEEP_TRACE_DAYS, and if that is right run `tightship db sweep-traces`"
        )
    return remove(database, store, removable, keep_days=keep_days, now=now)


def remove_all_below(store: ArtifactStore, folder: str) -> None:
    """Remove the complete files of a run or capture whose rows name none any more; others are for a sweep."""
    for file in store.files(folder):
        if _is_trace(file) and file.endswith(_COMPLETE):
            store.delete(file)


def give_up_old(session: Session, *, keep_days: int, now: int | None = None) -> int:
    """Have the rows of traces older than `keep_days` name no file any more.

    What was found in them stays. Captures that are still under way are left alone.

    :param keep_days: 0: all are kept.
    :returns: how many were given up.
    """
    if keep_days == 0:
        return 0
    old = _is_old(keep_days, now_ns() if now is None else now)
    given_up = update(Trace).where(Trace.removed_ns.is_(None), old).values(removed_ns=now)
    result: Any = session.execute(given_up.execution_options(synchronize_session=False))
    return int(result.rowcount)


def _is_old(keep_days: int, now: int) -> ColumnElement[bool]:
    final = [state.value for state in CaptureState if state.is_final]
    over = select(Capture.id).where(Capture.state.in_(final))
    return and_(
        Trace.created_ns < now - keep_days * 86_400 * NS_PER_S,
        or_(Trace.capture_id.is_(None), Trace.capture_id.in_(over)),
    )


def _named(session: Session, files: list[str], keep_days: int, now: int) -> set[str]:
    """Those of the files that a row names, and goes on to name."""
    kept: list[ColumnElement[bool]] = [Trace.removed_ns.is_(None)]
    if keep_days:
        kept.append(not_(_is_old(keep_days, now)))
    first = select(Trace.url).where(Trace.url.in_(files), *kept)
    second = select(SecondPass.url).join(Trace, Trace.id == SecondPass.trace_id)
    return {*session.scalars(first), *session.scalars(second.where(SecondPass.url.in_(files), *kept))}


def _captures(session: Session, run: str) -> set[str]:
    return set(session.scalars(select(Capture.key).join(Run, Capture.run_id == Run.id).where(Run.key == run)))


def _is_trace(file: str) -> bool:
    """Whether it has the name of a trace file, or of one that is being uploaded. Other files are left alone."""
    segments = file.split("/")
    return len(segments) == 4 and _NAME.fullmatch(segments[3]) is not None


def _is_settled(store: ArtifactStore, file: str, now: int, age_ns: int | None = SETTLED_NS) -> bool:
    modified_ns = None if age_ns is None else store.modified_ns(file)
    return age_ns is not None and modified_ns is not None and modified_ns < now - age_ns


def _remove_unnamed(database: Database, store: ArtifactStore, file: str, removed: Removed) -> None:
    with database.session() as session:
        try:
            lock(session, file.split("/")[2])
        except NotFound:  # its run was deleted since: nothing says any more that the file is ours
            return
        if not _named(session, [file], 0, 0):
            _delete(store, file, removed)


def _delete(store: ArtifactStore, file: str, removed: Removed) -> None:
    size_bytes = store.size(file) or 0
    if store.delete(file):
        removed.files += 1
        removed.size_bytes += size_bytes
