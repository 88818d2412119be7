"""When the host stood still until an accelerator had finished, and the device time that this cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.activity.device_busy import DeviceGaps
from tightship_analyzers.facts.activity.stall_cost import stall_cost
from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.facts.program.enclosing import outermost
from tightship_analyzers.facts.program.loader_ranges import LoaderRanges
from tightship_analyzers.facts.program.saves import Saves
from tightship_analyzers.facts.program.work_threads import WorkThreads
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Int32s, Int64s, Launches
from tightship_analyzers.trace.names import matcher
from tightship_analyzers.trace.runtime_calls import BLOCKING_COPY, SYNC_CALL

SCALAR_OPS = frozenset(("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal"))
"""Operators whose result is a value on the host."""

SIZED_BY_DATA = frozenset(
    (
        "aten::nonzero",
        "aten::masked_select",
        "aten::unique_consecutive",
        "aten::_unique2",
        "aten::unique_dim",
        "aten::unique_dim_consecutive",
        "aten::bincount",
    )
)
"""Operators that must know values to know the size of their result."""

READING_OPS = SCALAR_OPS | SIZED_BY_DATA
"""Operators whose result the host needs before it can go on."""

COPYING_OPS = frozenset(("aten::copy_", "aten::_to_copy", "aten::to", "aten::_copy_from"))
"""Operators that wait for a copy which they made; see `BlockingCopies`."""


@dataclass(frozen=True, slots=True, eq=False)
class HostSyncs:
    """Calls that block a work thread until the device has caught up, one row each, by start.

    `cost` is what [Note: the cost of a stall] says of each. Waits for a copy are not among them, unless the copy reads
    a value for the host.
    """

    needs: ClassVar[Needs] = (DeviceGaps, Window, WorkThreads)

    calls: Launches
    op: Int32s
    """(calls,) name of the outermost reading operator around the call; -1: an explicit synchronization."""
    cost_start_ns: Int64s
    cost_end_ns: Int64s
    """(calls,) the part of the device gap; empty (end <= start) where the device had work left."""

    @property
    def cost(self) -> Intervals:
        """All parts together."""
        return Intervals.of(self.cost_start_ns, self.cost_end_ns)

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Needs a device that runs on its own: on a CPU a scalar is there as soon as the operator returns."""
        trace = facts.trace
        if trace.device_kind != "gpu":
            return NotApplicable("needs an accelerator; on a CPU reading a scalar waits for nothing")
        if not len(trace.launches):
            return NotApplicable("needs runtime calls (cudaStreamSynchronize and the like); the trace holds none")
        gaps, window = facts[DeviceGaps], facts[Window]
        calls = trace.launches.overlapping(window.host_start_ns, window.end_ns)
        calls = calls.take(facts[WorkThreads].among(calls.tid))
        waits = trace.names.mask(calls.name, matcher(SYNC_CALL))
        copies = trace.names.mask(calls.name, matcher(BLOCKING_COPY))
        calls, waits = calls.take(waits | copies), waits[waits | copies]
        op = _around(facts, calls, READING_OPS)
        kept = (op >= 0) | (waits & (_around(facts, calls, COPYING_OPS) < 0))
        for elsewhere in (facts.find(LoaderRanges), facts.find(Saves)):
            if elsewhere is not None:
                kept &= ~elsewhere.spans.contains(calls.start_ns)
        calls, op = calls.take(kept), op[kept]
        return cls(calls, op, *stall_cost(calls.start_ns, calls.end_ns, gaps.followed))


def _around(facts: Facts, calls: Launches, wanted: frozenset[str]) -> Int32s:
    """(calls,) name of the outermost of these operators around each call; -1 where none is."""
    trace = facts.trace
    ops = trace.host_ops.take(trace.names.mask(trace.host_ops.name, wanted.__contains__))
    row = outermost(calls.tid, calls.start_ns, calls.end_ns, ops)
    return np.append(ops.name, np.int32(-1))[row]
