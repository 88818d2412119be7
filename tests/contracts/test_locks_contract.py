"""Locks on rows: nobody else changes them meanwhile, and PostgreSQL has nothing to clean up afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from capture_steps import NOW, all_at_once, request
from records import beat, lease_of, live, started
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from tightship_analyzers.fleet import accounting
from tightship_platform import captures, ingest
from tightship_platform.database.engine import Database
from tightship_platform.database.locks import locked
from tightship_platform.database.models import Capture, Run
from tightship_platform.ingest.runs import lock_run


def filled(session: Session) -> str:
    """Run a1 lives on h1, and a capture of it waits."""
    ingest.apply_run(session, started(), now=NOW)
    ingest.apply_heartbeat(session, beat(live(), time_ns=NOW), now=NOW)
    return request(session)


def account(session: Session) -> None:
    run = session.scalars(select(Run)).one()
    accounting.account_run(session, run, now=run.accounted_ns)


LOCKS: dict[str, tuple[Callable[[Session, str], object], dict[str, int]]] = {
    "capture": (captures.lock, {}),
    "run": (lambda session, key: lock_run(session, "a1"), {}),
    "sweep": (lambda session, key: captures.sweep(session, print, now=NOW), {}),
    "lease": (lambda session, key: captures.lease(session, lease_of("a1"), now=NOW), {"capture": 1}),
    "account": (lambda session, key: account(session), {}),
    "record": (lambda session, key: ingest.apply_run(session, started(), now=NOW), {}),
}
"""What locks rows → the rows that it also changes, by table."""


def versions(session: Session) -> Counter[str]:
    """Row versions that this connection has left for vacuum, by table, as far as it has not passed them on."""
    left = text(
        "SELECT relname, n_tup_upd FROM pg_stat_xact_user_tables WHERE relname IN ('run', 'capture', 'workflow')"
    )
    return Counter(dict(session.execute(left).all()))  # type: ignore[arg-type]


@pytest.mark.parametrize("what", LOCKS)
def test_a_lock_leaves_no_dead_row(database: Database, what: str) -> None:
    lock, changed = LOCKS[what]
    with database.session() as session:
        key = filled(session)
    with database.session() as session:
        account(session)
        session.scalars(select(Run)).one().accounted_ns = NOW
    with database.session() as session:
        if database.dialect == "sqlite":
            lock(session, key)
            assert session.connection().connection.dbapi_connection.in_transaction  # type: ignore[union-attr]
            return
        before = versions(session)
        lock(session, key)
        session.flush()
        assert versions(session) - before == changed


def test_who_locks_sees_what_the_one_before_wrote(database: Database) -> None:
    with database.session() as session:
        key = filled(session)

    def count() -> None:
        for _ in range(10):
            with database.session() as session:
                session.scalars(select(Capture)).one()  # an old state in the session's memory
                [capture] = locked(session, select(Capture).where(Capture.key == key))
                capture.attempts += 1

    all_at_once([count] * 4)
    with database.session() as session:
        assert session.scalars(select(Capture.attempts)).one() == 40
        assert locked(session, select(Capture).where(Capture.key == "none")) == []
