"""Daily partitions of the sample tables on PostgreSQL. SQLite has none, and every function here does nothing there.

Every row always has a place: days without a partition of their own live in the default partition, and move when their
day gets one. Days are made ahead, so that ingest normally never meets the default partition.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from tightship_platform.errors import NotFound
from tightship_platform.units import NS_PER_S, now_ns

TABLES = ("sample", "host_sample", "run_sample")
# What the sample tables refer to, in the order in which ingest takes them: attaching a partition locks them too, and
# whoever locks in the same order never deadlocks.
_REFERRED = ("host", "device", "run")
DAYS_AHEAD = 3
LOCK_TIMEOUT = "10s"
GIVE_WAY = "500ms"
"""Half of PostgreSQL's deadlock_timeout."""
_LOCK_KEY = 0x706172746974696F
_DAY_NS = 86_400 * NS_PER_S
_NAME = re.compile(r"(?P<table>sample|host_sample|run_sample)_(?P<day>\d{8})", re.ASCII)


def make_partitions(session: Session, *, days_ahead: int = DAYS_AHEAD, now: int | None = None) -> list[str]:
    """Make the partitions of today and the days ahead, and of past days whose rows wait in the default partition.

    Safe to repeat and to run in several processes. Waits at most LOCK_TIMEOUT for a busy table and then raises; the
    rows of that day are safe in the default partition until the next try.

    :returns: names of the partitions made.
    """
    if not _has_partitions(session):
        return []
    now = now_ns() if now is None else now
    today = datetime.fromtimestamp(now // NS_PER_S, UTC).date()
    _lock(session)
    made = []
    for table in TABLES:
        present = set(list_partitions(session, table))
        ahead = {today + timedelta(days=offset) for offset in range(days_ahead + 1)}
        for day in sorted((ahead | _days_in_default(session, table)) - present):
            made.append(_make(session, table, day))
    return made


def list_partitions(session: Session, table: str) -> list[date]:
    """Days of a sample table that have a partition of their own, oldest first."""
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


def merge_into_default(session: Session, table: str, day: date) -> int:
    """Take a day's partition away and keep its rows in the default partition; returns how many.

    :raises NotFound: the day has none.
    """
    present = list_partitions(session, table)
    if day not in present:
        raise NotFound("partition", _name(table, day), f"days that have one: {', '.join(map(str, present)) or 'none'}")
    _lock(session)
    _lock_referred(session)
    session.execute(text(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"))
    name = _name(table, day)
    session.execute(text(f"ALTER TABLE {table} DETACH PARTITION {name}"))
    moved = session.execute(text(f"INSERT INTO {table} SELECT * FROM {name}"))  # noqa: S608
    session.execute(text(f"DROP TABLE {name}"))
    return int(moved.rowcount)  # type: ignore[attr-defined]


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


def _days_in_default(session: Session, table: str) -> set[date]:
    days: Sequence[int] = session.scalars(
        text(f"SELECT DISTINCT time_ns / {_DAY_NS} FROM {table}_default")  # noqa: S608
    ).all()
    return {date(1970, 1, 1) + timedelta(days=int(day)) for day in days}


def _make(session: Session, table: str, day: date) -> str:
    """Make one partition and move the day's rows into it, in this transaction."""
    name = _name(table, day)
    first = (day - date(1970, 1, 1)).days * _DAY_NS
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
    return name


def _name(table: str, day: date) -> str:
    return f"{table}_{day:%Y%m%d}"
