"""Hours of devices whose rollups are out of date: ingest marks them, `rollups.roll_up` makes them again.

A mark goes with the change that makes it, in one transaction. `marked` counts: who has made an hour again takes away
the mark as it was before, so that what was marked meanwhile stays.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import and_, delete, or_, select
from sqlalchemy.orm import Session

from tightship_platform.database.models import DirtyHour
from tightship_platform.database.upsert import insert_into, put_columns
from tightship_platform.units import NS_PER_S

HOUR_NS = 3600 * NS_PER_S
MAX_HOURS = 24 * 366
"""Hours of one interval that are marked, the last ones: a year."""


def hours_of(since_ns: int, until_ns: int) -> range:
    """Starts of the hours that touch [since_ns, until_ns)."""
    first = max(since_ns - since_ns % HOUR_NS, until_ns - until_ns % HOUR_NS - MAX_HOURS * HOUR_NS)
    return range(first, until_ns, HOUR_NS)


def mark(session: Session, hours: Iterable[tuple[int, int]]) -> None:
    """Mark these (device id, start of the hour)."""
    rows = [{"device_id": device, "hour_ns": hour, "marked": 1} for device, hour in sorted(set(hours))]
    if rows and session.get_bind().dialect.name == "postgresql":
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        put_columns(session, DirtyHour, columns, merge={"marked": "dirty_hour.marked + 1"})
    elif rows:
        statement = insert_into(session, DirtyHour)
        again = {"marked": DirtyHour.marked + 1}
        session.execute(statement.on_conflict_do_update(index_elements=["device_id", "hour_ns"], set_=again), rows)


def some(session: Session, most: int) -> list[DirtyHour]:
    """At most so many marks of one hour, the newest."""
    newest = select(DirtyHour.hour_ns).order_by(DirtyHour.hour_ns.desc()).limit(1).scalar_subquery()
    return list(session.scalars(select(DirtyHour).where(DirtyHour.hour_ns == newest).limit(most)))


def unmark(session: Session, done: Iterable[DirtyHour]) -> None:
    """These are made again, as they were when they were read."""
    same = [
        and_(DirtyHour.device_id == one.device_id, DirtyHour.hour_ns == one.hour_ns, DirtyHour.marked == one.marked)
        for one in done
    ]
    if same:
        session.execute(delete(DirtyHour).where(or_(*same)).execution_options(synchronize_session=False))
