"""When the program cleared its gradients, what the device did for it, and when it waited for the host to do it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Annotations, DeviceEvents, Frames, Int64s
from tightship_analyzers.trace.names import matcher

ZERO_GRAD = "Optimizer.zero_grad#"
OF_MODULE = re.compile(r"torch/nn/modules/module\.py\(\d+\): zero_grad")
"""What stacks show of a model's own method, which has no annotation."""


@dataclass(frozen=True, slots=True, eq=False)
class ZeroGrads:
    """Calls of `zero_grad` within the window that launched something."""

    needs: ClassVar[Needs] = (Window, KernelOps)

    calls: Annotations | Frames
    """Of optimizers, as torch annotates them; where there are none those of modules, by the stacks."""
    events: DeviceEvents
    """What they launched."""
    row: Int64s
    """(events,) row in `Trace.device_events`."""

    @property
    def host(self) -> dict[int, Intervals]:
        """Thread → when it was in these calls."""
        of_thread = {tid: self.calls.take(self.calls.tid == tid) for tid in np.unique(self.calls.tid).tolist()}
        return {tid: Intervals.of_table(calls) for tid, calls in of_thread.items()}

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Needs the annotation of torch's optimizers, or stacks."""
        window, kernels, trace = facts[Window], facts[KernelOps], facts.trace
        calls: Annotations | Frames = trace.annotations_named(ZERO_GRAD)
        if not len(calls):
            calls = trace.frames.take(trace.names.mask(trace.frames.name, matcher(OF_MODULE)))
        calls = calls.take((calls.start_ns >= window.host_start_ns) & (calls.end_ns <= window.host_end_ns))
        if not len(calls):
            return NotApplicable("needs a call of zero_grad within the window")
        launches = facts.trace.launches
        linked = np.flatnonzero(kernels.events.launch >= 0)
        launch = kernels.events.launch[linked]
        at = np.searchsorted(calls.start_ns, launches.start_ns[launch], side="right") - 1
        inside = (at >= 0) & (launches.end_ns[launch] <= calls.end_ns[at]) & (launches.tid[launch] == calls.tid[at])
        mine = linked[inside]
        return cls(calls, kernels.events.take(mine), kernels.row[mine])
