"""Runtime calls that hold the host, and the idle time that each is the cause of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from tightship_analyzers.facts.activity.cause import Cause
from tightship_analyzers.facts.activity.stall_cost import left_behind
from tightship_analyzers.facts.blocking.host_syncs import COPYING_OPS, READING_OPS
from tightship_analyzers.facts.idle.found import Found
from tightship_analyzers.facts.program.enclosing import outermost
from tightship_analyzers.trace.columns import Bools, Int8s, Int32s, Int64s
from tightship_analyzers.trace.copy_memory import CopyMemory
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Trace
from tightship_analyzers.trace.names import matcher
from tightship_analyzers.trace.runtime_calls import ALLOCATING_CALL, BLOCKING_COPY, COPY_CALL, SYNC_CALL


@dataclass(frozen=True, slots=True, eq=False)
class Stalls:
    """When the work threads stood still in the runtime, by start.

    [Note: one stall of several calls] To read a scalar, or to copy from pageable memory, torch starts a copy and then
    waits for it: two calls, of which now one, now the other takes the time. All copies and waits of one such operator
    are one stall, from the first call's start to the last one's end.
    """

    start_ns: Int64s
    end_ns: Int64s
    tid: Int32s
    cause: Int8s
    """(stalls,) HOST_SYNC, SYNC_COPY or ALLOCATOR."""

    @classmethod
    def of(cls, trace: Trace, work_thread: Bools) -> Self:
        """`work_thread`: for each runtime call, is it of a thread that issues the step's work?"""
        names, calls, ops = trace.names, trace.launches, trace.host_ops
        copies = names.mask(calls.name, matcher(BLOCKING_COPY)) | _held_by_copy(trace)
        allocates = names.mask(calls.name, matcher(ALLOCATING_CALL))
        blocks = names.mask(calls.name, matcher(SYNC_CALL)) | copies | allocates
        rows = np.flatnonzero((blocks | names.mask(calls.name, matcher(COPY_CALL))) & work_thread)
        held = calls.take(rows)
        waiting = ops.take(names.mask(ops.name, (COPYING_OPS | READING_OPS).__contains__))
        op = np.where(allocates[rows], -1, outermost(held.tid, held.start_ns, held.end_ns, waiting))
        waits = np.zeros(len(waiting) + 1, dtype=np.bool_)
        waits[op[blocks[rows]]] = True
        waits[-1] = False
        kept = np.flatnonzero(blocks[rows] | waits[op])
        rows, op, held = rows[kept], op[kept], held.take(kept)
        cause = np.full(len(rows), Cause.HOST_SYNC, dtype=np.int8)
        cause[copies[rows]] = Cause.SYNC_COPY
        cause[allocates[rows]] = Cause.ALLOCATOR
        reads = names.mask(waiting.name, READING_OPS.__contains__)
        cause[op >= 0] = np.where(reads[op[op >= 0]], Cause.HOST_SYNC, Cause.SYNC_COPY)
        # One stall for each operator, and one for each call outside of any.
        stall = np.where(op >= 0, op, len(waiting) + np.arange(len(rows)))
        order = np.lexsort((held.start_ns, stall))
        first = np.flatnonzero(np.append(True, np.diff(stall[order]) != 0)[: len(rows)])
        start = held.start_ns[order][first]
        end = np.maximum.reduceat(held.end_ns[order], first) if len(first) else start
        by_start = np.argsort(start, kind="stable")
        one = order[first][by_start]
        return cls(start[by_start], end[by_start], held.tid[one], cause[one])

    def found(self, gaps: Intervals) -> Found:
        """The time within or near `gaps` that stalls are the cause of, by [Note: the cost of a stall]: disjoint, by
        start, its place that of the first call. Where two claim the same, the earlier one has it."""
        end = left_behind(self.start_ns, self.end_ns, gaps)
        start = np.maximum(self.start_ns, np.append(np.iinfo(np.int64).min, np.maximum.accumulate(end))[: len(end)])
        row = np.flatnonzero(end > start)
        nameless = np.full(len(row), -1, dtype=np.int32)
        return Found(
            start[row], end[row], self.cause[row], self.tid[row], self.start_ns[row], nameless, is_constant=True
        )


def _held_by_copy(trace: Trace) -> Bools:
    """(calls,) is it an asynchronous copy from or to pageable memory, which holds the host all the same?"""
    events = trace.device_events
    holding = CopyMemory.of(trace, events).holds_host & (events.launch >= 0)
    calls = np.zeros(len(trace.launches), dtype=np.bool_)
    calls[events.launch[holding]] = True
    return calls
