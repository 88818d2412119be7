"""Whether an installation is whole: its rows against the files of its artifact store, and the sums of its accounts.

For after a restore, and at any other time: it only reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tightship_platform.captures import files, store_owner
from tightship_platform.captures.artifact_store import ArtifactStore
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Run, RunAccount, SecondPass, Trace
from tightship_platform.errors import TightshipError
from tightship_platform.queries.allocations import held_intervals, held_ns

AT_ONCE = 1000
"""Rows that are read at a time."""


@dataclass(kw_only=True)
class Wholeness:
    """What a check found. An installation with no faults is whole."""

    traces: int = 0
    """Files that rows name."""
    missing: list[int] = field(default_factory=list)
    """Ids of traces whose file is not in the store, or of another size."""
    accounts: int = 0
    """Runs with an account."""
    unbalanced: list[str] = field(default_factory=list)
    """Keys of runs that are over and whose account does not hold their device time."""
    orphans: int = 0
    """Files that no row names, younger than they are kept; they are no fault."""
    store_fault: str | None = None
    """Why the store is not this installation's."""

    @property
    def faults(self) -> int:
        """How many things are wrong."""
        return len(self.missing) + len(self.unbalanced) + (self.store_fault is not None)


def check(database: Database, store: ArtifactStore) -> Wholeness:
    """Look at all rows and files. Changes nothing."""
    found = Wholeness()
    with database.session() as session:
        found.store_fault = store_owner.find_fault(session, store)
        for trace_id, url, size_bytes in _named_files(session):
            found.traces += 1
            if store.size(url) != size_bytes:
                found.missing.append(trace_id)
        for key, held_ns, accounted_ns in _accounts(session):
            found.accounts += 1
            if held_ns != accounted_ns:
                found.unbalanced.append(key)
    if found.store_fault is None:
        try:
            removable = files.find_removable(database, store, keep_days=0)
        except TightshipError as error:
            found.store_fault = str(error)
        else:
            found.orphans = len(removable.files) + len(removable.partials) + len(removable.deleted) + removable.unknown
    found.missing = sorted(set(found.missing))
    return found


def _named_files(session: Session) -> Iterator[tuple[int, str, int]]:
    last = 0
    while True:
        page = session.execute(
            select(Trace.id, Trace.url, Trace.bytes, SecondPass.url, SecondPass.bytes)
            .join(SecondPass, SecondPass.trace_id == Trace.id, isouter=True)
            .where(Trace.removed_ns.is_(None), Trace.id > last)
            .order_by(Trace.id)
            .limit(AT_ONCE)
        ).all()
        for trace_id, url, size_bytes, second_url, second_bytes in page:
            yield trace_id, url, size_bytes
            if second_url is not None:
                yield trace_id, second_url, second_bytes
        if not page:
            return
        last = page[-1][0]


def _accounts(session: Session) -> Iterator[tuple[str, int, int]]:
    """Key, held and accounted device-ns of runs that are over and have their account."""
    last = 0
    while True:
        page = session.execute(
            select(Run.id, Run.key, func.sum(RunAccount.device_ns))
            .join(RunAccount, RunAccount.run_id == Run.id)
            .where(Run.end_ns.is_not(None), Run.accounted_ns >= Run.end_ns, Run.id > last)
            .group_by(Run.id, Run.key)
            .order_by(Run.id)
            .limit(AT_ONCE)
        ).all()
        held = held_intervals(session, [run_id for run_id, _, _ in page])
        for run_id, key, accounted_ns in page:
            yield key, held_ns(held.get(run_id, {})), int(accounted_ns)
        if not page:
            return
        last = page[-1][0]
