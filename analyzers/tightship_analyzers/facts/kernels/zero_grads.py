"""When the program cleared its gradients, and what the device did for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.trace.model import Annotations, DeviceEvents, Int64s

ZERO_GRAD = "Optimizer.zero_grad#"


@dataclass(frozen=True, slots=True, eq=False)
class ZeroGrads:
    """Calls of `zero_grad` within the window, as torch annotates them."""

    needs: ClassVar[Needs] = (Window, KernelOps)

    calls: Annotations
    events: DeviceEvents
    """What they launched."""
    row: Int64s
    """(events,) row in `Trace.device_events`."""

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Needs the annotation of torch's optimizers."""
        window, kernels = facts[Window], facts[KernelOps]
        calls = facts.trace.annotations_named(ZERO_GRAD)
        calls = calls.take((calls.start_ns >= window.host_start_ns) & (calls.end_ns <= window.host_end_ns))
        if not len(calls):
            return NotApplicable("needs a call of the optimizer's zero_grad within the window")
        launches = facts.trace.launches
        linked = np.flatnonzero(kernels.events.launch >= 0)
        launch = kernels.events.launch[linked]
        at = np.searchsorted(calls.start_ns, launches.start_ns[launch], side="right") - 1
        inside = (at >= 0) & (launches.end_ns[launch] <= calls.end_ns[at]) & (launches.tid[launch] == calls.tid[at])
        mine = linked[inside]
        return cls(calls, kernels.events.take(mine), kernels.row[mine])
