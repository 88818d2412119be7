"""When the program cleared its gradients, what the device did for it, and when it waited for the host to do it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.facts.program.op_tree import OpTree
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Annotations, DeviceEvents, Frames, HostOps, Int64s
from tightship_analyzers.trace.names import matcher

ZERO_GRAD = "Optimizer.zero_grad#"
ACCUMULATE = "torch::autograd::AccumulateGrad"
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
        kernels, calls = facts[KernelOps], _calls(facts)
        if isinstance(calls, NotApplicable):
            return calls
        launches = facts.trace.launches
        linked = np.flatnonzero(kernels.events.launch >= 0)
        launch = kernels.events.launch[linked]
        at = np.searchsorted(calls.start_ns, launches.start_ns[launch], side="right") - 1
        inside = (at >= 0) & (launches.end_ns[launch] <= calls.end_ns[at]) & (launches.tid[launch] == calls.tid[at])
        mine = linked[inside]
        return cls(calls, kernels.events.take(mine), kernels.row[mine])


@dataclass(frozen=True, slots=True, eq=False)
class ZeroedOperators:
    """The same of a job on the CPU, whose operators are the device timeline."""

    needs: ClassVar[Needs] = (OpTree,)

    calls: Annotations | Frames
    fills: HostOps
    """Those that a call of `zero_grad` ran, one per gradient."""
    adds: HostOps
    """Those by which the backward pass then adds to a zero: of each gradient the first one after the call."""

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Needs a call of `zero_grad`.

        A backward pass adds to every gradient once, so the first additions after a call, as many as it has filled, are
        those to a zero, and the later ones those of further backward passes.
        """
        calls, ops, names = _calls(facts), facts[OpTree].ops, facts.trace.names
        if isinstance(calls, NotApplicable):
            return calls
        fills = _inside(ops.take(ops.name == names.id("aten::zero_")), calls)
        nodes = ops.take(ops.name == names.id(ACCUMULATE))
        adds = _inside(ops.take(ops.name == names.id("aten::add_")), nodes)
        bounds = np.append(calls.end_ns, np.iinfo(np.int64).max)
        filled = np.diff(np.searchsorted(fills.start_ns, np.append(calls.start_ns, bounds[-1])))
        first, stop = np.searchsorted(adds.start_ns, bounds[:-1]), np.searchsorted(adds.start_ns, bounds[1:])
        rows = [np.arange(a, min(a + n, b)) for a, b, n in zip(first, stop, filled, strict=True)]
        return cls(calls, fills, adds.take(np.concatenate(rows)))


def _calls(facts: Facts) -> Annotations | Frames | NotApplicable:
    window, trace = facts[Window], facts.trace
    calls: Annotations | Frames = trace.annotations_named(ZERO_GRAD)
    if not len(calls):
        calls = trace.frames.take(trace.names.mask(trace.frames.name, matcher(OF_MODULE)))
    calls = calls.take((calls.start_ns >= window.host_start_ns) & (calls.end_ns <= window.host_end_ns))
    return calls if len(calls) else NotApplicable("needs a call of zero_grad within the window")


def _inside(ops: HostOps, around: Annotations | Frames | HostOps) -> HostOps:
    """Of them those that one of the ranges encloses; the ranges of one thread do not overlap."""
    if not len(around):
        return ops.take(np.array([], dtype=np.int64))
    at = np.searchsorted(around.start_ns, ops.start_ns, side="right") - 1
    return ops.take((at >= 0) & (ops.end_ns <= around.end_ns[at]) & (ops.tid == around.tid[at]))
