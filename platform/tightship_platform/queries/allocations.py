"""Which devices runs held, as disjoint intervals: the device time that every account divides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform.database.models import Allocation, Run

Interval = tuple[int, int]


def held_intervals(session: Session, run_ids: Sequence[int]) -> dict[int, dict[int, list[Interval]]]:
    """run id → device id → intervals (start_ns, end_ns), disjoint and in order. See [Note: allocations].

    An allocation that is still open reaches to the run's end, or to the last sign of life while there is none.
    """
    raw: defaultdict[int, defaultdict[int, list[Interval]]] = defaultdict(lambda: defaultdict(list))
    rows = session.execute(
        select(
            Allocation.run_id,
            Allocation.device_id,
            Allocation.start_ns,
            Allocation.end_ns,
            Run.end_ns.label("run_end_ns"),
            Run.last_seen_ns,
        )
        .join(Run)
        .where(Allocation.run_id.in_(run_ids))
    )
    for row in rows:
        open_end = row.run_end_ns if row.run_end_ns is not None else row.last_seen_ns
        end_ns = row.end_ns if row.end_ns is not None else max(open_end, row.start_ns)
        raw[row.run_id][row.device_id].append((row.start_ns, end_ns))
    return {
        run_id: {device_id: union(intervals) for device_id, intervals in sorted(devices.items())}
        for run_id, devices in raw.items()
    }


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time in disjoint intervals, in order; empty ones are left out."""
    joined: list[Interval] = []
    for start_ns, end_ns in sorted(intervals):
        if end_ns <= start_ns:
            continue
        if joined and start_ns <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end_ns))
        else:
            joined.append((start_ns, end_ns))
    return joined


def held_ns(devices: dict[int, list[Interval]]) -> int:
    """Device-nanoseconds of one run: the sum over its devices."""
    return sum(end_ns - start_ns for intervals in devices.values() for start_ns, end_ns in intervals)
