"""Allocations: which run holds which device, from when to when.

[Note: allocations] An `AllocationRecord` is known by run, device and start; its end is final for that start.
The rows of one run and device never overlap, in whatever order records and heartbeats come:
- a row whose end is not known yet ends where the next one begins, until its own end is reported;
- what a heartbeat opened within an interval that a record tells is part of that interval;
- nothing outlives the end of the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from tightship_platform.database.models import Allocation, Device, Rollup, Run
from tightship_platform.samples import dirty_hours, rollups
from tightship_platform.samples.retention import removed_days
from tightship_platform.vocabulary import DeviceKind
from tightship_platform.wire import AllocationRecord, LiveRun

Held = Mapping[int, int | None]
"""Start of each interval → its end; null: there is none yet."""
Rows = defaultdict[tuple[int, int], list[Allocation]]


def apply_allocations(
    session: Session,
    runs: Mapping[str, Run],
    device_ids: Mapping[str, int],
    records: Sequence[AllocationRecord],
    now: int,
) -> None:
    """Apply checked records; the runs are locked. See [Note: allocations]."""
    rows = _rows(session, [runs[key].id for key in {record.run for record in records}])
    for record in records:
        run = runs[record.run]
        held = rows[run.id, device_ids[record.device]]
        before = {row.start_ns: row.end_ns for row in held}
        same = next((row for row in held if row.start_ns == record.start_ns), None)
        if same is None:
            same = _open(run, device_ids[record.device], record.start_ns, held)
            session.add(same)
        if record.end_ns is not None:
            same.end_ns = _clip(run, record.start_ns, record.end_ns)
            for row in [row for row in held if row.end_ns is None and record.start_ns < row.start_ns <= record.end_ns]:
                held.remove(row)
                session.delete(row)
        _part(held)
        _note_change(session, run, device_ids[record.device], before, {row.start_ns: row.end_ns for row in held}, now)
    session.flush()


def hold_now(
    session: Session, alive: Sequence[tuple[Run, LiveRun]], device_ids: Mapping[str, int], time_ns: int, now: int
) -> None:
    """Open what a heartbeat shows to be held and no row covers; the runs are locked.

    The processor is held from the run's first process on. When an accelerator was taken nobody knows yet: it counts
    from the heartbeat until the agent's record tells.
    """
    rows = _rows(session, [run.id for run, _ in alive])
    named = {device_ids[uuid] for _, live in alive for uuid in live.devices}
    of_processors = select(Device.id).where(Device.id.in_(named), Device.kind == DeviceKind.CPU.value)
    processors = set(session.scalars(of_processors))
    opened: list[Allocation] = []
    for run, live in alive:
        for device_id in sorted({device_ids[uuid] for uuid in live.devices}):
            held = rows[run.id, device_id]
            if any(row.end_ns is None or row.end_ns > time_ns for row in held):
                continue
            is_first = device_id in processors and live.since_ns and not held
            opened.append(_open(run, device_id, live.since_ns if is_first else time_ns, held))
            _note_change(session, run, device_id, {}, {opened[-1].start_ns: opened[-1].end_ns}, now)
    if opened:  # in one statement, not one for each
        columns = ("run_id", "device_id", "start_ns", "end_ns")
        session.execute(insert(Allocation), [{name: getattr(row, name) for name in columns} for row in opened])


def close_allocations(session: Session, run: Run, now: int) -> None:
    """The run has ended: so have its allocations."""
    for (_, device_id), held in _rows(session, [run.id]).items():
        before = {row.start_ns: row.end_ns for row in held}
        for row in held:
            row.end_ns = _clip(run, row.start_ns, row.end_ns)
        _note_change(session, run, device_id, before, {row.start_ns: row.end_ns for row in held}, now)


def _note_change(session: Session, run: Run, device_id: int, before: Held, after: Held, now: int) -> None:
    """Mark the hours that are rolled up already and in which the run holds the device now, or does not any more."""
    changed = []
    for start_ns in before.keys() | after.keys():
        old, new = _end_of(before, start_ns, now), _end_of(after, start_ns, now)
        if old != new and min(old, new) < now - rollups.FRESH_NS:
            changed.append((min(old, new), max(old, new)))
    if not changed:
        return
    hours = {hour for since_ns, until_ns in changed for hour in dirty_hours.hours_of(since_ns, until_ns)}
    if removed_days(session, min(hours), now):
        return  # what was rolled up of them is all that is left
    of_run = Rollup.run_id == run.id, Rollup.device_id == device_id, Rollup.time_ns >= min(hours)
    # Of an hour in which it holds the device no more, nothing would be made again.
    session.execute(delete(Rollup).where(*of_run).execution_options(synchronize_session=False))
    dirty_hours.mark(session, {(device_id, hour) for hour in range(min(hours), now, dirty_hours.HOUR_NS)})


def _rows(session: Session, run_ids: Sequence[int]) -> Rows:
    rows: Rows = defaultdict(list)
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
