"""Means of a run's samples per minute and per hour, for charts and judgements over long times.

[Note: each minute about twice]
`roll_up` makes the rows of what came since it was called the last time, and a little of what came before: samples
arrive FRESH_NS late at most, and are committed MARGIN_NS after that. What comes later, or changes which run a device
was held by, is marked by ingest (`dirty_hours`) and made again, hour by hour of each device. Rolling up again gives the
same rows. Hours are made of minutes, weighted by their samples; the hour that has not ended, every five minutes.

Servers of releases before 0011 mark nothing: theirs was a worker that made the last two hours again every time. So on a
database that has older runs when it is called for the first time, as one of such a release has, `roll_up` does that
for UPGRADE_NS, every five minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    Subquery,
    and_,
    case,
    cast,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    text,
)
from sqlalchemy.orm import Session

from tightship_platform.database.models import Allocation, RemovedDay, RolledUp, Rollup, Run, Sample
from tightship_platform.samples import dirty_hours, unallocated
from tightship_platform.units import NS_PER_S, now_ns

MINUTE_NS = 60 * NS_PER_S
HOUR_NS = 3600 * NS_PER_S
WINDOW_NS = 2 * HOUR_NS
"""Most that `roll_up` makes at one go; it begins that long ago."""
FRESH_NS = 60 * NS_PER_S
"""Samples are this old at most when they arrive, unless their host was cut off or its clock is wrong."""
MARGIN_NS = 60 * NS_PER_S
SLOT_NS = 5 * MINUTE_NS
UPGRADE_NS = 24 * HOUR_NS
"""For so long servers of the release before may run beside this one."""
DIRTY_AT_ONCE = 400
"""Marked hours of devices that one transaction makes again."""
METRICS = (
    "util_frac",
    "sm_active_frac",
    "sm_occupancy_frac",
    "tensor_active_frac",
    "dram_active_frac",
    "memory_used_bytes",
    "power_w",
    "temperature_c",
    "clock_hz",
    "pcie_rx_bytes_per_s",
    "pcie_tx_bytes_per_s",
    "nvlink_rx_bytes_per_s",
    "nvlink_tx_bytes_per_s",
)
_LOCK_KEY = 0x726F6C6C7570
# Written out: PostgreSQL takes two parameters of one value for two different expressions in GROUP BY.
_MINUTE: ColumnElement[int] = literal_column(str(MINUTE_NS), BigInteger)
_HOUR: ColumnElement[int] = literal_column(str(HOUR_NS), BigInteger)


def roll_up(session: Session, *, now: int | None = None) -> int:
    """Roll up what came since the last time, WINDOW_NS at most; returns the number of minute rows made."""
    now = now_ns() if now is None else now
    _lock(session)
    reached = session.get(RolledUp, 1)
    if reached is None:
        reached = RolledUp(id=1, minutes_ns=now - WINDOW_NS, hours_ns=now - WINDOW_NS)
        if session.scalar(select(Run.id).where(Run.start_ns < now - SLOT_NS).limit(1)) is not None:
            reached.unmarked_until_ns = now + UPGRADE_NS
        session.add(reached)
        since_ns = hours_ns = now - WINDOW_NS
    else:
        # A clock that was ahead has left times to come.
        since_ns = min(reached.minutes_ns, now) - FRESH_NS - MARGIN_NS
        hours_ns = min(reached.hours_ns, now) - FRESH_NS - MARGIN_NS
        if now < (reached.unmarked_until_ns or 0) and now // SLOT_NS != reached.hours_ns // SLOT_NS:
            since_ns = hours_ns = min(since_ns, now - WINDOW_NS)
    until_ns = min(now, since_ns + WINDOW_NS)
    rows = _make_minutes(session, since_ns, until_ns, None)
    if until_ns // SLOT_NS != reached.hours_ns // SLOT_NS:
        _make_hours(session, hours_ns, until_ns, None, now)
        reached.hours_ns = until_ns
    reached.minutes_ns = until_ns
    session.flush()
    return rows


def roll_up_dirty(session: Session) -> int:
    """Make some marked hours again, the newest first, all of the same hour; returns how many."""
    _lock(session)
    marks = dirty_hours.some(session, DIRTY_AT_ONCE)
    if not marks:
        return 0
    hour_ns = marks[0].hour_ns
    day = select(RemovedDay.day_ns).where(RemovedDay.day_ns <= hour_ns, RemovedDay.day_ns > hour_ns - 24 * HOUR_NS)
    # Of a day that is gone, the rollups are what is left.
    if session.scalar(day) is None:
        devices = sorted({one.device_id for one in marks})
        roll_up_range(session, hour_ns, hour_ns + HOUR_NS, device_ids=devices)
    dirty_hours.unmark(session, marks)
    return len(marks)


def _lock(session: Session) -> None:
    """Two at once would insert the same rows."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})


def roll_up_range(session: Session, since_ns: int, until_ns: int, *, device_ids: Sequence[int] | None = None) -> int:
    """Make the rollups again for every minute and hour that touches [since_ns, until_ns), of all or some devices."""
    _lock(session)
    rows = _make_minutes(session, since_ns, until_ns, device_ids)
    _make_hours(session, since_ns, until_ns, device_ids, now_ns())
    return rows


def _make_minutes(session: Session, since_ns: int, until_ns: int, device_ids: Sequence[int] | None) -> int:
    first, last = since_ns - since_ns % MINUTE_NS, until_ns + -until_ns % MINUTE_NS
    _clear(session, MINUTE_NS, first, last, device_ids)
    return _insert_minutes(session, first, last, device_ids)


def _make_hours(session: Session, since_ns: int, until_ns: int, device_ids: Sequence[int] | None, now: int) -> None:
    first, last = since_ns - since_ns % HOUR_NS, until_ns + -until_ns % HOUR_NS
    _clear(session, HOUR_NS, first, last, device_ids)
    _insert_hours(session, first, last, device_ids)
    unallocated.count(session, first, last, now=now, device_ids=device_ids)


def _clear(session: Session, width_ns: int, first: int, last: int, device_ids: Sequence[int] | None) -> None:
    old = delete(Rollup).where(Rollup.width_ns == width_ns, Rollup.time_ns >= first, Rollup.time_ns < last)
    # The key leads with the run: without this the whole table would be read.
    old = old.where(Rollup.run_id.in_(select(_held(first, last, device_ids).c.run_id)))
    if device_ids is not None:
        old = old.where(Rollup.device_id.in_(device_ids))
    session.execute(old.execution_options(synchronize_session=False))


def _held(first: int, last: int, device_ids: Sequence[int] | None) -> Subquery:
    """Pairs of run and device, with the interval to look at: allocations that overlap are one."""
    held = (
        select(Allocation.run_id, Allocation.device_id, Allocation.start_ns, Allocation.end_ns)
        .join(Run)
        .where(Allocation.start_ns < last, or_(Allocation.end_ns.is_(None), Allocation.end_ns > first))
    )
    if device_ids is not None:
        held = held.where(Allocation.device_id.in_(device_ids))
    return held.subquery()


def _insert_minutes(session: Session, first: int, last: int, device_ids: Sequence[int] | None) -> int:
    held = _held(first, last, device_ids)
    # Overlapping allocations of one run and device would count a sample twice: DISTINCT first, then the means.
    columns = [getattr(Sample, metric) for metric in METRICS]
    seen = (
        select(held.c.run_id, Sample.device_id, Sample.time_ns, *columns)
        .join(held, held.c.device_id == Sample.device_id)
        .where(
            Sample.time_ns >= first,
            Sample.time_ns < last,
            Sample.time_ns >= held.c.start_ns,
            or_(held.c.end_ns.is_(None), Sample.time_ns < held.c.end_ns),
        )
        .distinct()
        .subquery()
    )
    minute = (seen.c.time_ns - seen.c.time_ns % _MINUTE).label("minute")
    means = [_as_column(metric, func.avg(seen.c[metric])) for metric in METRICS]
    rows = select(seen.c.run_id, seen.c.device_id, _MINUTE, minute, func.count(), *means).group_by(
        seen.c.run_id, seen.c.device_id, minute
    )
    names = ["run_id", "device_id", "width_ns", "time_ns", "samples", *METRICS]
    result: Any = session.execute(
        insert(Rollup).from_select(names, rows), execution_options={"preserve_rowcount": True}
    )
    return int(result.rowcount)


def _insert_hours(session: Session, first: int, last: int, device_ids: Sequence[int] | None) -> None:
    hour = (Rollup.time_ns - Rollup.time_ns % _HOUR).label("hour")
    means = []
    for metric in METRICS:
        column = getattr(Rollup, metric)
        weight = func.sum(case((column.is_not(None), Rollup.samples)))
        means.append(_as_column(metric, func.sum(cast(column, Float) * Rollup.samples) / weight))
    of_minutes = and_(Rollup.width_ns == MINUTE_NS, Rollup.time_ns >= first, Rollup.time_ns < last)
    rows = select(Rollup.run_id, Rollup.device_id, _HOUR, hour, func.sum(Rollup.samples), *means)
    rows = rows.where(of_minutes, Rollup.run_id.in_(select(_held(first, last, device_ids).c.run_id)))
    rows = rows.group_by(Rollup.run_id, Rollup.device_id, hour)
    if device_ids is not None:
        rows = rows.where(Rollup.device_id.in_(device_ids))
    names = ["run_id", "device_id", "width_ns", "time_ns", "samples", *METRICS]
    session.execute(insert(Rollup).from_select(names, rows))


def _as_column(metric: str, mean: Any) -> ColumnElement[Any]:
    """Sizes and rates are whole numbers."""
    if isinstance(getattr(Rollup, metric).type, BigInteger):
        return cast(func.round(mean), BigInteger)
    return cast(mean, Float)
