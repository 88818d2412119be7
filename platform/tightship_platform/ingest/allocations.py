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

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from tightship_platform.database.models import Allocation, Device, Run
from tightship_platform.vocabulary import DeviceKind
from tightship_platform.wire import AllocationRecord, LiveRun

Rows = defaultdict[tuple[int, int], list[Allocation]]


def apply_allocations(
    session: Session, runs: Mapping[str, Run], device_ids: Mapping[str, int], records: Sequence[AllocationRecord]
) -> None:
    """Apply checked records; the runs are locked. See [Note: allocations]."""
    rows = _rows(session, [runs[key].id for key in {record.run for record in records}])
    for record in records:
        run = runs[record.run]
        held = rows[run.id, device_ids[record.device]]
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
    session.flush()


def hold_now(
    session: Session, alive: Sequence[tuple[Run, LiveRun]], device_ids: Mapping[str, int], time_ns: int
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
    if opened:  # in one statement, not one for each
        columns = ("run_id", "device_id", "start_ns", "end_ns")
        session.execute(insert(Allocation), [{name: getattr(row, name) for name in columns} for row in opened])


def close_allocations(session: Session, run: Run) -> None:
    """The run has ended: so have its allocations."""
    for held in _rows(session, [run.id]).values():
        for row in held:
            row.end_ns = _clip(run, row.start_ns, row.end_ns)


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
