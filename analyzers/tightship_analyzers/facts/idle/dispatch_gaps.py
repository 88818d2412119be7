"""Device gaps in which the host was still dispatching the next kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.activity.device_busy import DeviceGaps
from tightship_analyzers.facts.idle.causes import Cause, IdleCauses
from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Int64s

MAX_GAP_NS = 1_000_000
"""Dispatching an operator from Python takes 5 to 100 µs; in a longer gap the host does other work."""


@dataclass(frozen=True, slots=True, eq=False)
class DispatchGaps:
    """Gaps that end with an event which was launched after the gap began: the queue was empty."""

    needs: ClassVar[Needs] = (DeviceGaps, KernelOps, IdleCauses)

    spans: Intervals
    """What of them is due to dispatch (`Cause.HOST_DISPATCH`), not to input, checkpoints or waiting for the device."""
    next_event: Int64s
    """(gaps,) row in `KernelOps` of the event that ends each gap; one per gap before other causes were cut out."""
    cost_ns: Int64s
    """(gaps,) what of each gap is in `spans`."""
    by_thread: dict[int, Intervals]
    """Thread that launched the next event → its part of `spans`."""

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Needs device events with their launches."""
        gaps, kernels, idle = facts[DeviceGaps], facts[KernelOps], facts[IdleCauses]
        events, launches = kernels.events, facts.trace.launches
        if not (events.launch >= 0).any():
            return NotApplicable("needs runtime calls that launch the device's work; the trace holds none")
        row = np.searchsorted(events.start_ns, gaps.spans.end_ns)
        known = row < len(events)
        begun, ends, row = gaps.spans.start_ns[known], gaps.spans.end_ns[known], row[known]
        launched_ns = launches.start_ns[events.launch[row]]
        late = (events.start_ns[row] == ends) & (events.launch[row] >= 0) & (launched_ns > begun)
        late &= ends - begun <= MAX_GAP_NS
        begun, ends, row = begun[late], ends[late], row[late]
        host = idle.window.spans(Cause.HOST_DISPATCH)
        tid = launches.tid[events.launch[row]]
        by_thread = {
            thread: Intervals.of(begun[tid == thread], ends[tid == thread]) & host for thread in np.unique(tid).tolist()
        }
        return cls(Intervals.of(begun, ends) & host, row, host.overlap_ns(begun, ends), by_thread)
