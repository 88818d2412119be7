"""Allocations: which run holds which device, from when to when.

[Note: allocations] An `AllocationRecord` is known by run, device and start; its end is final for that start.
The rows of one run and device never overlap, in whatever order records and heartbeats come:
- a row whose end is not known yet ends where the next one begins, until its own end is reported;
- what a heartbeat opened within an interval that a record tells is part of that interval;
- nothing outlives the end of the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from tightship_platform.database.models import Allocation, Device, Rollup, Run
from tightship_platform.samples import dirty_hours, rollups
from tightship_platform.samples.dirty_hours import HOUR_NS
from tightship_platform.samples.retention import day_of, removed_days
from tightship_platform.vocabulary import DeviceKind

Held = Mapping[int, int | None]
"""Start of each interval → its end; null: there is none yet."""
Rows = defaultdict[tuple[int, int], list[Allocation]]
Changed = dict[tuple[int, int], int]
"""Run and device → start of the first hour that is rolled up already and in which the run holds it now, or no more."""


@dataclass(frozen=True, kw_only=True)
class Reported:
    """What a checked record tells of a run, whose row is locked, and a device."""

    run: Run
    device_id: int
    start_ns: int
    end_ns: int | None


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a heartbeat shows of a run, whose row is locked, and a device that it holds."""

    run: Run
    device_id: int
    since_ns: int
    """Start of the run's first process; 0: not known."""
    time_ns: int


def apply_allocations(session: Session, records: Sequence[Reported], now: int) -> None:
    """Apply records. See [Note: allocations]."""
    if not records:
        return
    changed: Changed = {}
    opened: list[Allocation] = []
    rows = _rows(session, {record.run.id for record in records})
    for record in records:
        run = record.run
        held = rows[run.id, record.device_id]
        before = {row.start_ns: row.end_ns for row in held}
        same = next((row for row in held if row.start_ns == record.start_ns), None)
        if same is None:
            same = _open(run, record.device_id, record.start_ns, held)
            opened.append(same)
        if record.end_ns is not None:
            same.end_ns = _clip(run, record.start_ns, record.end_ns)
            for row in [row for row in held if row.end_ns is None and record.start_ns < row.start_ns <= record.end_ns]:
                held.remove(row)
                if row in opened:
                    opened.remove(row)
                else:
                    session.delete(row)
        _part(held)
        _note_change(changed, run, record.device_id, before, {row.start_ns: row.end_ns for row in held}, now)
    session.flush()
    _insert(session, opened)
    _roll_up_again(session, changed, now)


def hold_now(session: Session, shown: Sequence[Shown], now: int) -> None:
    """Open what heartbeats show to be held and no row covers.

    The processor is held from the run's first process on. When an accelerator was taken nobody knows yet: it counts
    from the heartbeat until the agent's record tells.
    """
    rows = _rows(session, {one.run.id for one in shown})
    free = {one.device_id for one in shown if not _is_held(rows[one.run.id, one.device_id], one.time_ns)}
    if not free:
        return
    of_processors = select(Device.id).where(Device.id.in_(free), Device.kind == DeviceKind.CPU.value)
    processors = set(session.scalars(of_processors))
    opened: list[Allocation] = []
    changed: Changed = {}
    for one in shown:
        held = rows[one.run.id, one.device_id]
        if _is_held(held, one.time_ns):
            continue
        is_first = one.device_id in processors and one.since_ns and not held
        opened.append(_open(one.run, one.device_id, one.since_ns if is_first else one.time_ns, held))
        _note_change(changed, one.run, one.device_id, {}, {opened[-1].start_ns: opened[-1].end_ns}, now)
    _insert(session, opened)
    _roll_up_again(session, changed, now)


def _insert(session: Session, rows: Sequence[Allocation]) -> None:
    """In one statement, not one for each."""
    columns = ("run_id", "device_id", "start_ns", "end_ns")
    if rows:
        session.execute(insert(Allocation), [{name: getattr(row, name) for name in columns} for row in rows])


def _is_held(rows: Sequence[Allocation], time_ns: int) -> bool:
    return any(row.end_ns is None or row.end_ns > time_ns for row in rows)


def close_allocations(session: Session, run: Run, now: int) -> None:
    """The run has ended: so have its allocations."""
    changed: Changed = {}
    for (_, device_id), held in _rows(session, [run.id]).items():
        before = {row.start_ns: row.end_ns for row in held}
        for row in held:
            row.end_ns = _clip(run, row.start_ns, row.end_ns)
        _note_change(changed, run, device_id, before, {row.start_ns: row.end_ns for row in held}, now)
    _roll_up_again(session, changed, now)


def _note_change(changed: Changed, run: Run, device_id: int, before: Held, after: Held, now: int) -> None:
    """Add what `_roll_up_again` has to know."""
    for start_ns in before.keys() | after.keys():
        old, new = _end_of(before, start_ns, now), _end_of(after, start_ns, now)
        if old != new and min(old, new) < now - rollups.FRESH_NS:
            first = dirty_hours.hours_of(min(old, new), max(old, new)).start
            changed[run.id, device_id] = min(first, changed.get((run.id, device_id), first))


def _roll_up_again(session: Session, changed: Changed, now: int) -> None:
    """Mark the hours of devices from the first one on that has changed."""
    if not changed:
        return
    removed = max(removed_days(session, min(changed.values()), now), default=None)
    if removed is not None:  # what was rolled up of such days is all that is left
        changed = {held: hour for held, hour in changed.items() if day_of(hour) > removed}
    since: defaultdict[int, set[tuple[int, int]]] = defaultdict(set)
    for held, hour in changed.items():
        since[hour].add(held)
    for hour, pairs in since.items():
        # All of these runs and devices: what is not of one of the pairs is made again, too, as the hours of its device.
        those = Rollup.run_id.in_({run for run, _ in pairs}), Rollup.device_id.in_({device for _, device in pairs})
        # Of an hour in which it holds the device no more, nothing would be made again.
        old = delete(Rollup).where(*those, Rollup.time_ns >= hour)
        session.execute(old.execution_options(synchronize_session=False))
    hours = {(device, hour) for (_, device), first in changed.items() for hour in range(first, now, HOUR_NS)}
    dirty_hours.mark(session, hours)


def _rows(session: Session, run_ids: Collection[int]) -> Rows:
    rows: Rows = defaultdict(list)
    if not run_ids:
        return rows
    found = select(Allocation).where(Allocation.run_id.in_(run_ids)).order_by(Allocation.start_ns)
    for row in session.scalars(found.execution_options(populate_existing=True)).all():
        rows[row.run_id, row.device_id].append(row)
    return rows


def _open(run: Run, device_id: int, start_ns: int, held: list[Allocation]) -> Allocation:
    row = Allocation(run_id=run.id, device_id=device_id, start_ns=start_ns, end_ns=_clip(run, start_ns, None))
    held.append(row)
    held.sort(key=lambda row: row.start_ns)
    return row


def _part(held: list[Allocation]) -> None:
    for row, following in pairwise(held):
        if row.end_ns is None:
            row.end_ns = following.start_ns


def _clip(run: Run, start_ns: int, end_ns: int | None) -> int | None:
    if run.end_ns is None:
        return end_ns
    return max(start_ns, run.end_ns if end_ns is None else min(end_ns, run.end_ns))


def _end_of(held: Held, start_ns: int, now: int) -> int:
    """The end of the interval that starts then: now where it has none yet, its start where there is no such one."""
    end_ns = held.get(start_ns, start_ns)
    return now if end_ns is None else end_ns
