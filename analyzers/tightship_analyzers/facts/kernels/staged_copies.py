"""Copies from device memory to device memory that only move a tensor to where something else expects it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.facts.program.enclosing import outermost
from tightship_analyzers.trace.columns import EventKind
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Bools, DeviceEvents, HostOps, Int8s, Int64s, Launches, Trace
from tightship_analyzers.trace.names import matcher
from tightship_analyzers.trace.runtime_calls import GRAPH_LAUNCH

ON_DEVICE = re.compile(
    r"Memcpy DtoD|Memcpy PtoP|(Copy|Memcpy)DeviceToDevice|rocclr_copyBuffer|ForeachCopy|_foreach_copy"
)
"""Copies of CUPTI and roctracer, the kernel that ROCm copies with, and torch's copy of whole lists."""
COPYING = re.compile(r"aten::(copy_|clone|contiguous|_foreach_copy_)")
REDUCER = re.compile(r"torch\.distributed\.ddp\.reducer::copy_\w+")
"""Ranges of DistributedDataParallel's reducer."""
HOOK = re.compile(r"(torch::autograd::)?AccumulateGrad")
"""The operator in which the reducer's hook copies a gradient into its bucket, in versions without a range for that."""
CLONE = re.compile(r"aten::clone")
BUFFERS = re.compile(r"torch/nn/parallel/distributed\.py\(\d+\): _?sync\w*buffers")
"""The function of DistributedDataParallel that broadcasts buffers before the forward pass."""


class Reason(IntEnum):
    """For what a copy is made; a higher one comes first where two fit."""

    NONE = 0
    """No reason that is known; the program may well need it."""
    COLLECTIVE = 1
    """The tensor is sent from, or comes back into, other memory than the program's own."""
    GRAPH = 2
    """A captured graph reads and writes at fixed addresses."""
    BUFFERS = 3
    """DistributedDataParallel broadcasts buffers as one flat tensor and copies them back."""
    BUCKETS = 4
    """DistributedDataParallel keeps gradients twice: as such and in its buckets."""


@dataclass(frozen=True, slots=True, eq=False)
class StagedCopies:
    """Copies within the device in the window whose reason is known."""

    needs: ClassVar[Needs] = (KernelOps,)

    events: DeviceEvents
    row: Int64s
    """(copies,) row in `Trace.device_events`."""
    op: Int64s
    """(copies,) row in `Trace.host_ops` of the outermost copying operator (`aten::clone`)."""
    reason: Int8s
    """(copies,) a `Reason`."""

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Needs the launches of copies."""
        kernels, trace = facts[KernelOps], facts.trace
        names = trace.names
        on_device = names.mask(kernels.events.name, lambda name: ON_DEVICE.search(name) is not None)
        at = np.flatnonzero(on_device & (kernels.events.launch >= 0) & (kernels.events.kind != EventKind.COLLECTIVE))
        events = kernels.events.take(at)
        calls = trace.launches.take(events.launch)
        copying = np.flatnonzero(names.mask(trace.host_ops.name, matcher(COPYING)))
        op = _around(calls, trace.host_ops, copying)
        known = op >= 0
        at, events, calls, op = at[known], events.take(known), calls.take(known), op[known]
        if not len(at):
            return NotApplicable("needs copies within device memory, with their launches; the trace holds none")
        top = _around(calls, trace.host_ops, np.arange(len(trace.host_ops)))
        reason = np.zeros(len(at), dtype=np.int8)
        is_clone = _around(calls, trace.host_ops, np.flatnonzero(names.mask(trace.host_ops.name, matcher(CLONE)))) >= 0
        reason[_beside_collectives(kernels, trace, at, top, is_clone)] = Reason.COLLECTIVE
        reason[_beside_graphs(trace, top)] = Reason.GRAPH
        reason[_within_frames(trace, calls)] = Reason.BUFFERS
        reason[_of_buckets(trace, calls, is_clone)] = Reason.BUCKETS
        found = reason != Reason.NONE
        return cls(events.take(found), kernels.row[at[found]], op[found], reason[found])


def _around(calls: Launches, ops: HostOps, rows: Int64s) -> Int64s:
    """(calls,) the outermost of some operators, `rows` of the table, around each call; -1 where there is none."""
    found = outermost(calls.tid, calls.start_ns, calls.end_ns, ops.take(rows))
    return np.where(found >= 0, np.append(rows, -1)[found], -1)


def _beside_collectives(kernels: KernelOps, trace: Trace, at: Int64s, top: Int64s, is_clone: Bools) -> Bools:
    """Is what the thread launched right before or right after a collective, under the same outermost operator?"""
    events = kernels.events
    linked = np.flatnonzero(events.launch >= 0)
    launch = events.launch[linked]
    order = linked[np.lexsort((trace.launches.start_ns[launch], trace.launches.tid[launch]))]
    place = np.full(len(events), -1, dtype=np.int64)
    place[order] = np.arange(len(order))
    beside = np.zeros(len(at), dtype=np.bool_)
    everything = np.arange(len(trace.host_ops))
    for step in (-1, 1):
        other = place[at] + step
        inside = (other >= 0) & (other < len(order))
        row = order[np.where(inside, other, 0)]
        sends = inside & (events.kind[row] == EventKind.COLLECTIVE)
        calls = trace.launches.take(events.launch[row])
        same = sends & (_around(calls, trace.host_ops, everything) == top)
        # Without a common operator a clone is the tensor that is sent next.
        beside |= (same & (top >= 0)) | (sends & is_clone & (step == 1))
    return beside


def _beside_graphs(trace: Trace, top: Int64s) -> Bools:
    """Does the outermost operator launch a captured graph, too?"""
    graphs = trace.launches.take(trace.names.mask(trace.launches.name, matcher(GRAPH_LAUNCH)))
    around = outermost(graphs.tid, graphs.start_ns, graphs.end_ns, trace.host_ops)
    return (top >= 0) & np.isin(top, around[around >= 0])


def _within_frames(trace: Trace, calls: Launches) -> Bools:
    """Was it launched while DistributedDataParallel broadcast its buffers?"""
    frames = trace.frames.take(trace.names.mask(trace.frames.name, lambda name: BUFFERS.match(name) is not None))
    return Intervals.of_table(frames).contains(calls.start_ns) if len(frames) else np.zeros(len(calls), dtype=np.bool_)


def _of_buckets(trace: Trace, calls: Launches, is_clone: Bools) -> Bools:
    """Was it launched by the reducer, or beside other ranks in the hook behind a gradient, not as the gradient's own
    clone?"""
    ops, names = trace.host_ops, trace.names
    by_reducer = _around(calls, ops, np.flatnonzero(names.mask(ops.name, matcher(REDUCER)))) >= 0
    if not (trace.device_events.kind == EventKind.COLLECTIVE).any():
        return by_reducer
    in_hook = _around(calls, ops, np.flatnonzero(names.mask(ops.name, matcher(HOOK)))) >= 0
    return by_reducer | (in_hook & ~is_clone)
