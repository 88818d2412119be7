"""Device time that no run was allocated, as sums of each hour of a device and of each day.

[Note: the run of nobody] A device of the live fleet counts in a minute of UTC for which its host reported a sample of
it. What of that minute no run held is unallocated. It is busy by the mean utilisation of the minute's samples; where
they hold none, it is unmeasured. The minute that has not ended waits.

Hours are counted whenever their rollups are made (`rollups`): while they pass, and again when something arrives late.
What an hour adds to its day is taken back first, so the sums are those of the last count, in whatever order samples and
allocations come. When a run is removed, the hours in which it held a device are `settled`: nobody could know any more
that it was not free then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import BigInteger, ColumnElement, func, literal_column, or_, select
from sqlalchemy.orm import Session

from tightship_platform.database.models import (
    Allocation,
    Device,
    Host,
    RemovedDay,
    Run,
    Sample,
    UnallocatedDay,
    UnallocatedHour,
)
from tightship_platform.samples.dirty_hours import hours_of
from tightship_platform.units import NS_PER_S
from tightship_platform.vocabulary import RunState

MINUTE_NS = 60 * NS_PER_S
HOUR_NS = 3600 * NS_PER_S
DAY_NS = 24 * HOUR_NS
# Written out: PostgreSQL takes two parameters of one value for two different expressions in GROUP BY.
_MINUTE: ColumnElement[int] = literal_column(str(MINUTE_NS), BigInteger)
Key = tuple[int, int]
"""Device id and start of the hour."""


@dataclass(slots=True)
class _Free:
    """What of an hour of a device no run held."""

    device_ns: int = 0
    measured_ns: int = 0
    busy_ns: int = 0
    until_ns: int = 0
    """End of the last minute that counts."""


def count(session: Session, first_ns: int, last_ns: int, *, now: int, device_ids: Sequence[int] | None = None) -> None:
    """Count the hours of [first_ns, last_ns) again, of all devices or of some. See [Note: the run of nobody].

    Who calls it is the only one to do so.
    """
    found = _free(session, first_ns, min(last_ns, now), device_ids)
    rows = select(UnallocatedHour).where(UnallocatedHour.hour_ns >= first_ns, UnallocatedHour.hour_ns < last_ns)
    if device_ids is not None:
        rows = rows.where(UnallocatedHour.device_id.in_(device_ids))
    known: dict[Key, UnallocatedHour] = {(row.device_id, row.hour_ns): row for row in session.scalars(rows)}
    days: dict[int, UnallocatedDay] = {}
    for (device_id, hour_ns), free in found.items():
        row = known.get((device_id, hour_ns))
        if row is None and not free.device_ns:
            continue
        if row is None:
            row = _empty_hour(device_id, hour_ns)
            session.add(row)
        if row.is_settled:
            continue
        day_ns = hour_ns - hour_ns % DAY_NS
        day = days.get(day_ns) or session.get(UnallocatedDay, day_ns)
        if day is None:
            day = UnallocatedDay(
                day_ns=day_ns, since_ns=hour_ns, until_ns=hour_ns, device_ns=0, measured_ns=0, busy_ns=0
            )
            session.add(day)
        days[day_ns] = day
        day.since_ns, day.until_ns = min(day.since_ns, hour_ns), max(day.until_ns, free.until_ns)
        for name in ("device_ns", "measured_ns", "busy_ns"):
            setattr(day, name, getattr(day, name) - getattr(row, name) + getattr(free, name))
            setattr(row, name, getattr(free, name))
    session.flush()


def settle(session: Session, run: Run) -> None:
    """Leave the hours in which a run held a device as they are: its allocations are about to go."""
    held = select(Allocation.device_id, Allocation.start_ns, Allocation.end_ns).where(Allocation.run_id == run.id)
    life_end = run.end_ns if run.end_ns is not None else run.last_seen_ns
    keys = {
        (device_id, hour_ns)
        for device_id, start_ns, end_ns in session.execute(held)
        for hour_ns in hours_of(start_ns, life_end if end_ns is None else end_ns)
    }
    gone = set(session.scalars(select(RemovedDay.day_ns)))  # of such days no hour is counted again
    keys = {(device_id, hour_ns) for device_id, hour_ns in keys if hour_ns - hour_ns % DAY_NS not in gone}
    devices = sorted({device_id for device_id, _ in keys})
    known = {
        (row.device_id, row.hour_ns): row
        for row in session.scalars(select(UnallocatedHour).where(UnallocatedHour.device_id.in_(devices)))
    }
    for key in sorted(keys):
        row = known.get(key)
        if row is None:
            row = _empty_hour(*key)
            session.add(row)
        row.is_settled = True
    session.flush()


def _empty_hour(device_id: int, hour_ns: int) -> UnallocatedHour:
    zero = dict.fromkeys(("device_ns", "measured_ns", "busy_ns"), 0)
    return UnallocatedHour(device_id=device_id, hour_ns=hour_ns, is_settled=False, **zero)


def _free(session: Session, first_ns: int, last_ns: int, device_ids: Sequence[int] | None) -> dict[Key, _Free]:
    """Of each hour in which a device reported."""
    minute = (Sample.time_ns - Sample.time_ns % _MINUTE).label("minute")
    reported = (
        select(Sample.device_id, minute, func.avg(Sample.util_frac))
        .join(Device, Device.id == Sample.device_id)
        .join(Host, Host.id == Device.host_id)
        .where(Host.fleet_id.is_(None), Sample.time_ns >= first_ns, Sample.time_ns < last_ns)
        .group_by(Sample.device_id, minute)
    )
    if device_ids is not None:
        reported = reported.where(Sample.device_id.in_(device_ids))
    held = _held(session, first_ns, last_ns, device_ids)
    found: dict[Key, _Free] = defaultdict(_Free)
    for device_id, start_ns, util_frac in session.execute(reported):
        end_ns = start_ns + MINUTE_NS
        if end_ns > last_ns:
            continue
        free = found[device_id, start_ns - start_ns % HOUR_NS]
        ns = MINUTE_NS - _overlap(held.get(device_id, ()), start_ns, end_ns)
        free.device_ns += ns
        free.until_ns = max(free.until_ns, end_ns)
        if util_frac is not None:
            free.measured_ns += ns
            free.busy_ns += min(ns, round(ns * util_frac))
    return found


def _held(
    session: Session, first_ns: int, last_ns: int, device_ids: Sequence[int] | None
) -> dict[int, list[tuple[int, int]]]:
    """Device → when any run held it: disjoint, in order. What a live run holds it holds on."""
    rows = (
        select(Allocation.device_id, Allocation.start_ns, Allocation.end_ns, Run.state, Run.end_ns, Run.last_seen_ns)
        .join(Run, Run.id == Allocation.run_id)
        .where(Allocation.start_ns < last_ns, or_(Allocation.end_ns.is_(None), Allocation.end_ns > first_ns))
        .order_by(Allocation.start_ns)
    )
    if device_ids is not None:
        rows = rows.where(Allocation.device_id.in_(device_ids))
    held: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for device_id, start_ns, known_ns, state, run_end_ns, last_seen_ns in session.execute(rows):
        open_end_ns = last_seen_ns if run_end_ns is None else run_end_ns
        end_ns = known_ns if known_ns is not None else last_ns if state == RunState.RUNNING else open_end_ns
        spans = held[device_id]
        if spans and start_ns <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], end_ns)
        else:
            spans.append((start_ns, max(start_ns, end_ns)))
    return held


def _overlap(spans: Iterable[tuple[int, int]], start_ns: int, end_ns: int) -> int:
    return sum(max(0, min(end, end_ns) - max(start, start_ns)) for start, end in spans)
