"""Copies and sets of memory that the host waited for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.activity.device_busy import DeviceGaps
from tightship_analyzers.facts.activity.stall_cost import idle_through, stall_cost
from tightship_analyzers.facts.blocking.host_syncs import READING_OPS
from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.program.enclosing import outermost
from tightship_analyzers.facts.program.loader_ranges import LoaderRanges
from tightship_analyzers.facts.program.saves import Saves
from tightship_analyzers.facts.program.work_threads import WorkThreads
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.trace.columns import EventKind
from tightship_analyzers.trace.copy_memory import CopyMemory
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Bools, DeviceEvents, Int32s, Int64s, Launches, Trace
from tightship_analyzers.trace.names import matcher
from tightship_analyzers.trace.runtime_calls import BLOCKING_COPY, SYNC_CALL


@dataclass(frozen=True, slots=True, eq=False)
class BlockingCopies:
    """Copies and sets within the window for which a work thread stood still; scalars that it read are left out.

    The host waits in the call itself, or in a synchronization that the same operator makes after it.
    """

    needs: ClassVar[Needs] = (KernelOps, DeviceGaps, Window, WorkThreads)

    events: DeviceEvents
    row: Int64s
    """(copies,) row in `Trace.device_events`."""
    op: Int64s
    """(copies,) row in `Trace.host_ops` of the operator; -1: unknown."""
    tid: Int32s
    start_ns: Int64s
    end_ns: Int64s
    """(copies,) when the host waited."""
    pageable: Bools
    """(copies,) from or to memory that the driver had to stage."""
    to_device: Bools
    gaps: Intervals
    """When the device idled before other work."""

    def cost(self, rows: Bools) -> Intervals:
        """Device time that these waits cost: the gap after each, and while the driver stages memory those during it."""
        staged = rows & self.pageable & self.to_device
        during = idle_through(self.start_ns[staged], self.end_ns[staged], self.gaps)
        return during | Intervals.of(*stall_cost(self.start_ns[rows], self.end_ns[rows], self.gaps))

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """Needs device events and their launches."""
        kernels, gaps = facts[KernelOps], facts[DeviceGaps]
        trace, window = facts.trace, facts[Window]
        moves = (kernels.events.kind == EventKind.COPY) | (kernels.events.kind == EventKind.SET)
        rows = np.flatnonzero(moves & (kernels.events.launch >= 0))
        events, op = kernels.events.take(rows), kernels.op[rows]
        calls = trace.launches.take(events.launch)
        end_ns = np.maximum(calls.end_ns, _waited_until(trace, calls, op))
        waits = end_ns > calls.end_ns
        waits |= trace.names.mask(calls.name, matcher(BLOCKING_COPY))
        memory = CopyMemory.of(trace, events)
        waits |= memory.holds_host
        reading = trace.host_ops.take(trace.names.mask(trace.host_ops.name, READING_OPS.__contains__))
        waits &= outermost(calls.tid, calls.start_ns, calls.end_ns, reading) < 0
        waits &= facts[WorkThreads].among(calls.tid)
        waits &= (calls.start_ns >= window.host_start_ns) & (end_ns <= window.end_ns)
        for elsewhere in (facts.find(LoaderRanges), facts.find(Saves)):
            if elsewhere is not None:
                waits &= ~elsewhere.spans.contains(calls.start_ns)
        start_ns, end_ns = calls.start_ns[waits], end_ns[waits]
        return cls(
            events.take(waits),
            kernels.row[rows][waits],
            op[waits],
            calls.tid[waits],
            start_ns,
            end_ns,
            memory.pageable[waits],
            memory.to_device[waits],
            gaps.followed,
        )


def _waited_until(trace: Trace, calls: Launches, op: Int64s) -> Int64s:
    """(calls,) end of the first synchronization after each call within the same operator; 0 where there is none."""
    found = np.zeros(len(calls), dtype=np.int64)
    syncs = trace.launches.take(trace.names.mask(trace.launches.name, matcher(SYNC_CALL)))
    for tid in np.unique(calls.tid).tolist():
        own = syncs.take(syncs.tid == tid)
        rows = np.flatnonzero((calls.tid == tid) & (op >= 0))
        if not len(own) or not len(rows):
            continue
        at = np.minimum(np.searchsorted(own.start_ns, calls.end_ns[rows]), len(own) - 1)
        inside = (own.start_ns[at] >= calls.end_ns[rows]) & (own.end_ns[at] <= trace.host_ops.end_ns[op[rows]])
        found[rows[inside]] = own.end_ns[at[inside]]
    return found
