"""Daily partitions of the sample tables on PostgreSQL. SQLite has none, and every function here does nothing there.

Every row always has a place: days without their own partition live in the default partition, and move when their
day gets one. Days are made ahead, so that ingest normally never meets the default partition.

[Note: one at a time]
PostgreSQL keeps the locks of all transactions in a table of fixed size, and whoever makes a partition holds up ingest.
So each partition is made in its own transaction, a call makes a bounded number of them, and days of long ago stay in
the default partition: whatever times rows hold, neither a call nor the number of partitions grows large.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from tightship_platform.errors import NotFound
from tightship_platform.units import NS_PER_S, now_ns

log = logging.getLogger(__name__)

TABLES = ("sample", "host_sample", "run_sample")
# What the sample tables refer to, in the order in which ingest takes them: attaching a partition locks them too, and
# whoever locks in the same order never deadlocks.
_REFERRED = ("host", "device", "run")
DAYS_AHEAD = 3
DAYS_BACK = 100
"""Rows of days before these stay in the default partition."""
MOST_PAST = 30
"""Partitions of past days made in one call."""
LOCK_TIMEOUT = "10s"
GIVE_WAY = "500ms"
"""Half of PostgreSQL's deadlock_timeout: how long a table that is needed whole is waited for, while others wait too."""
MOVE_TIMEOUT = "20s"
"""The rows of a day that takes longer to move stay in the default partition: ingest stands still meanwhile."""
_LOCK_KEY = 0x706172746974696F
_DAY_NS = 86_400 * NS_PER_S
_EPOCH = date(1970, 1, 1)
_NAME = re.compile(r"(?P<table>sample|host_sample|run_sample)_(?P<day>\d{8})", re.ASCII)


def make_partitions(session: Session, *, days_ahead: int = DAYS_AHEAD, now: int | None = None) -> list[str]:
    """Make the partitions of today and the days ahead, and of past days whose rows wait in the default partition.

    Commits after each one; see [Note: one at a time]. Safe to repeat and to run in several processes. A table that is
    busy costs one line in the log: the rows are safe in the default partition until the next try.

    :returns: names of the partitions made.
    """
    if not _has_partitions(session):
        return []
    now = now_ns() if now is None else now
    today = datetime.fromtimestamp(now // NS_PER_S, UTC).date()
    made = []
    try:
        for table, day in _missing(session, today, days_ahead):
            if _make(session, table, day):
                made.append(_name(table, day))
            session.commit()
    except DBAPIError as error:
        session.rollback()
        cause = " ".join(str(error.orig).split())
        log.warning("Partitions could not be made; rows wait in the default partition for the next try: %s", cause)
    return made


def list_partitions(session: Session, table: str) -> list[date]:
    """Days of a sample table that have their own partition, oldest first."""
    if not _has_partitions(session):
        return []
    names = session.scalars(
        text(
            "SELECT child.relname FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid"
            " WHERE inhparent = to_regclass(:table)"
        ),
        {"table": table},
    )
    days = [match["day"] for name in names if (match := _NAME.fullmatch(name))]
    return sorted(datetime.strptime(day, "%Y%m%d").replace(tzinfo=UTC).date() for day in days)


def drop_partition(session: Session, table: str, day: date) -> None:
    """Take a day's partition away with its rows.

    Needs every table involved for itself for a moment. It waits less than PostgreSQL lets others wait before it looks
    for a deadlock: in case of doubt this gives way, not a reader or a writer.

    :raises NotFound: the day has none.
    :raises sqlalchemy.exc.OperationalError: the tables are busy; nothing was changed.
    """
    if day not in list_partitions(session, table):
        raise NotFound("partition", _name(table, day), "see the partitions of the sample tables in the database")
    session.execute(text(f"SET LOCAL lock_timeout = '{GIVE_WAY}'"))
    for locked in (*_REFERRED, table):
        session.execute(text(f"LOCK TABLE {locked} IN ACCESS EXCLUSIVE MODE"))
    session.execute(text(f"ALTER TABLE {table} DETACH PARTITION {_name(table, day)}"))
    session.execute(text(f"DROP TABLE {_name(table, day)}"))


def _has_partitions(session: Session) -> bool:
    return session.get_bind().dialect.name == "postgresql"


def _lock(session: Session) -> None:
    session.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'"))
    session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})


def _lock_referred(session: Session) -> None:
    for referred in _REFERRED:
        session.execute(text(f"LOCK TABLE {referred} IN SHARE ROW EXCLUSIVE MODE"))


def _missing(session: Session, today: date, days_ahead: int) -> Iterator[tuple[str, date]]:
    """Partitions to make: first those of the days ahead, then some of the newest past days."""
    ahead = [today + timedelta(days=offset) for offset in range(days_ahead + 1)]
    present = {table: set(list_partitions(session, table)) for table in TABLES}
    waiting = {table: _days_in_default(session, table, today) for table in TABLES}
    yield from ((table, day) for table in TABLES for day in ahead if day not in present[table])
    past = [(table, day) for table in TABLES for day in waiting[table] - present[table] - set(ahead)]
    yield from sorted(past, key=lambda found: (-found[1].toordinal(), TABLES.index(found[0])))[:MOST_PAST]


def _days_in_default(session: Session, table: str, today: date) -> set[date]:
    """Days of which rows wait in the default partition, none more than DAYS_BACK from today."""
    first = (today - _EPOCH).days - DAYS_BACK
    days: Sequence[int] = session.scalars(
        text(
            f"SELECT DISTINCT time_ns / {_DAY_NS} FROM {table}_default"  # noqa: S608
            " WHERE time_ns >= :first AND time_ns < :last"
        ),
        {"first": first * _DAY_NS, "last": (first + 2 * DAYS_BACK + 1) * _DAY_NS},
    ).all()
    return {_EPOCH + timedelta(days=int(day)) for day in days}


def _make(session: Session, table: str, day: date) -> bool:
    """Make one partition and move the day's rows into it, in this transaction; False: somebody else just made it."""
    _lock(session)
    if day in list_partitions(session, table):
        return False
    session.execute(text(f"SET LOCAL lock_timeout = '{GIVE_WAY}'"))
    session.execute(text(f"SET LOCAL statement_timeout = '{MOVE_TIMEOUT}'"))
    name = _name(table, day)
    first = (day - _EPOCH).days * _DAY_NS
    within = f"time_ns >= {first} AND time_ns < {first + _DAY_NS}"
    _lock_referred(session)
    session.execute(text(f"LOCK TABLE {table} IN SHARE UPDATE EXCLUSIVE MODE"))
    session.execute(text(f"LOCK TABLE {table}_default IN ACCESS EXCLUSIVE MODE"))
    session.execute(text(f"CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"))
    session.execute(
        text(
            f"WITH moved AS (DELETE FROM {table}_default WHERE {within} RETURNING *)"  # noqa: S608
            f" INSERT INTO {name} SELECT * FROM moved"
        )
    )
    # Known to hold, the constraint spares the scan of the new table while the parent is locked.
    session.execute(text(f"ALTER TABLE {name} ADD CONSTRAINT {name}_day CHECK ({within})"))
    session.execute(
        text(f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({first}) TO ({first + _DAY_NS})")
    )
    session.execute(text(f"ALTER TABLE {name} DROP CONSTRAINT {name}_day"))
    return True


def _name(table: str, day: date) -> str:
    return f"{table}_{day:%Y%m%d}"
