"""Removing what is older than the settings keep it: runs, captures, hosts.

[Note: what is old]
Age counts from the newest sample where the clock is ahead of it (see [Note: what may go] in `samples.retention`). A run
goes when it has been over for so long, and is accounted for; a capture when it was asked for so long ago, and its run
is over and accounted for: what arrives late changes an account no more then, as the settings keep both at least as long
as samples. Imported runs stay. A host is forgotten, not removed: runs and samples refer to its devices.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, or_, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from tightship_platform.captures import store_owner
from tightship_platform.captures.artifact_store import TRACES, ArtifactStore
from tightship_platform.captures.files import remove_all_below
from tightship_platform.captures.transitions import lock
from tightship_platform.database import ranked_workflows
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Capture, Host, RemovedRun, Run, Trace
from tightship_platform.database.trouble import is_away
from tightship_platform.errors import TightshipError
from tightship_platform.samples.retention import BUDGET_S, DAY_NS, newest_sample_ns
from tightship_platform.tasks.removal.runs import begin, finish
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import CaptureState, RunState

log = logging.getLogger(__name__)

KEY_DAYS = 400
"""For so long it is known which runs were removed."""
AT_ONCE = 100
"""Rows that are looked for, or changed, at once."""


@dataclass(kw_only=True)
class Removed:
    """How many went."""

    runs: int = 0
    captures: int = 0
    hosts: int = 0
    failed: list[str] = field(default_factory=list)
    """Keys of runs and captures that could not go; the log says why."""


def remove_old(
    database: Database,
    store: ArtifactStore,
    *,
    run_days: int,
    capture_days: int,
    host_days: int,
    now: int | None = None,
) -> Removed:
    """Remove what is older than so many days, 0: for ever; see [Note: what is old]. Safe to repeat and to be killed.

    :raises Conflict: the store is not this installation's; nothing was removed.
    """
    removed, deadline_s = Removed(), time.monotonic() + BUDGET_S
    with database.session() as session:
        newest_ns = min(now_ns() if now is None else now, newest_sample_ns(session) or 0)
        if run_days or capture_days:
            store_owner.require_own(session, store)
    if run_days:
        removed.runs = _remove_each(
            database, lambda after: _old_runs(newest_ns - run_days * DAY_NS, after), removed, deadline_s, _run(store)
        )
    if capture_days:
        removed.captures = _remove_each(
            database,
            lambda after: _old_captures(newest_ns - capture_days * DAY_NS, after),
            removed,
            deadline_s,
            _capture(store),
        )
    if host_days:
        removed.hosts = _forget_hosts(database, newest_ns - host_days * DAY_NS)
    _forget_keys(database, newest_ns - KEY_DAYS * DAY_NS)
    return removed


def _remove_each(database: Database, wanted: Any, removed: Removed, deadline_s: float, remove: Any) -> int:
    """Remove what a query names, one by one, however often it has to be asked; one that fails stops no other."""
    count, after = 0, 0
    while time.monotonic() < deadline_s:
        with database.session() as session:
            rows = session.execute(wanted(after)).all()
        for row in rows:
            try:
                count += remove(database, row, deadline_s)
            except (TightshipError, DBAPIError, OSError) as error:
                if isinstance(error, DBAPIError) and is_away(error):
                    raise
                log.warning("%s could not be removed: %s", row.key, " ".join(str(error).split()))
                removed.failed.append(row.key)
            except Exception:
                log.exception("%s could not be removed", row.key)
                removed.failed.append(row.key)
            if time.monotonic() > deadline_s:
                return count
        if not rows:
            break
        after = rows[-1].id
    return count


def _over(until_ns: int) -> ColumnElement[bool]:
    """Runs that were over by then, and have their account."""
    life_end = func.coalesce(Run.end_ns, Run.last_seen_ns)
    return and_(
        Run.state != RunState.RUNNING.value,
        Run.source.not_like("import:%"),
        life_end < until_ns,
        Run.accounted_ns >= life_end,
    )


def _old_runs(until_ns: int, after: int) -> Any:
    return select(Run.id, Run.key).where(_over(until_ns), Run.id > after).order_by(Run.id).limit(AT_ONCE)


def _run(store: ArtifactStore) -> Any:
    def remove(database: Database, row: Any, deadline_s: float) -> bool:
        with database.session() as session:
            key = begin(session, row.id, keeps_names=True)
        return finish(database, store, key, deadline_s=deadline_s)

    return remove


def _old_captures(until_ns: int, after: int) -> Any:
    final = [state.value for state in CaptureState if state.is_final]
    old = Capture.requested_ns < until_ns, Capture.state.in_(final), Capture.id > after
    found = select(Capture.id, Capture.key, Run.key.label("run")).join(Run, Run.id == Capture.run_id)
    return found.where(*old, _over(until_ns)).order_by(Capture.id).limit(AT_ONCE)


def _capture(store: ArtifactStore) -> Any:
    def remove(database: Database, row: Any, _deadline_s: float) -> bool:
        # No file without a row, and no row that names a file which is gone, whenever this ends.
        with database.session() as session:
            lock(session, row.key)
            names = update(Trace).where(Trace.capture_id == row.id, Trace.removed_ns.is_(None))
            session.execute(names.values(removed_ns=now_ns()).execution_options(synchronize_session=False))
        remove_all_below(store, f"{TRACES}/{row.run}/{row.key}")
        with database.session() as session:
            capture = lock(session, row.key)
            ranked_workflows.mark(session, [capture.run.workflow_id])
            session.expunge(capture)
            gone = delete(Capture).where(Capture.id == row.id)
            session.execute(gone.execution_options(synchronize_session=False))
        return True

    return remove


def _forget_hosts(database: Database, until_ns: int) -> int:
    """Hosts that nothing was heard of since then are in no list any more, and belong to no token."""
    known = or_(Host.forgotten_ns.is_(None), Host.forgotten_ns < Host.last_seen_ns)
    count = 0
    while True:
        with database.session() as session:
            silent = select(Host.id).where(Host.last_seen_ns < until_ns, known).order_by(Host.id).limit(AT_ONCE)
            ids = session.scalars(silent).all()
            # Once more: one of them may be heard of just now.
            which = Host.id.in_(ids), Host.last_seen_ns < until_ns
            changed = (
                update(Host)
                .where(*which)
                .values(forgotten_ns=Host.last_seen_ns, info={}, sources=[], agent_version=None, reported_by=None)
            )
            result: Any = session.execute(changed.execution_options(synchronize_session=False))
        if not ids:
            return count
        count += int(result.rowcount)


def _forget_keys(database: Database, until_ns: int) -> None:
    """What was removed so long ago that nobody delivers anything of it any more."""
    while True:
        with database.session() as session:
            keys = _keys(session, until_ns)
            gone = delete(RemovedRun).where(RemovedRun.key.in_(keys))
            session.execute(gone.execution_options(synchronize_session=False))
        if not keys:
            return


def _keys(session: Session, until_ns: int) -> list[str]:
    old = select(RemovedRun.key).where(RemovedRun.removed_ns < until_ns).order_by(RemovedRun.removed_ns)
    return list(session.scalars(old.limit(1000)))
