"""What an indexed loop costs on the device timeline, forward and backward, in all iterations but one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.activity.device_busy import DeviceGaps
from tightship_analyzers.facts.kernels.device_work import DeviceWork
from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.program.indexed_loops import IndexedLoops, Loop
from tightship_analyzers.facts.program.op_tree import OpTree
from tightship_analyzers.facts.program.work_threads import AUTOGRAD_NODE
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import HostOps

INDEX_BACKWARD = tuple(AUTOGRAD_NODE + node for node in ("Select", "Slice", "Narrow", "Index"))


@dataclass(frozen=True, slots=True, eq=False)
class LoopCost:
    """One loop; `indexing` is part of `overhead`."""

    loop: Loop
    indexing: Intervals
    """The indexing operators and the backward of each."""
    overhead: Intervals
    """That, and the time in which no innermost operator of the loop works; on a device: in which it idles."""


@dataclass(frozen=True, slots=True, eq=False)
class LoopCosts:
    """One entry per loop of `IndexedLoops`.

    [Note: forward and backward] An operator and the autograd node of its backward carry the same sequence number, and
    numbers are given in order of the forward pass: the nodes of a loop are those whose number lies between the first
    and the last of its operators.
    """

    needs: ClassVar[Needs] = (IndexedLoops, OpTree, Steps)

    costs: list[LoopCost]

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """Needs what the loops need."""
        loops, tree, steps = facts[IndexedLoops], facts[OpTree], facts[Steps]
        is_node = facts.trace.names.mask(tree.ops.name, lambda name: name.startswith(AUTOGRAD_NODE))
        nodes = tree.ops.take(is_node & tree.is_top)
        device = facts.find(DeviceWork)
        costs = []
        for loop in loops.loops:
            mine = _backward_of(loop, nodes, steps)
            is_index = facts.trace.names.mask(mine.name, lambda name: name.startswith(INDEX_BACKWARD))
            if device is None:
                costs.append(_on_cpu(loop, mine, mine.take(is_index), tree))
            else:
                costs.append(_on_device(loop, mine, mine.take(is_index), facts, device, steps.tid))
        return cls(costs)


def _backward_of(loop: Loop, nodes: HostOps, steps: Steps) -> HostOps:
    second_ns, stop_ns = loop.all_but_one
    later = loop.body.seq[loop.body.start_ns >= second_ns]
    later = later[later >= 0]
    step = steps.number_at(stop_ns)
    if not len(later) or step is None:
        return nodes.take(np.array([], dtype=np.int64))
    inside = (nodes.seq >= later.min()) & (nodes.seq <= later.max())
    inside &= (nodes.start_ns >= stop_ns) & (nodes.start_ns < steps.host_bounds_ns[step + 1])
    return nodes.take(inside)


def _on_cpu(loop: Loop, nodes: HostOps, index_nodes: HostOps, tree: OpTree) -> LoopCost:
    indexing = Intervals.of_table(loop.indexing) | Intervals.of_table(index_nodes)
    everything = Intervals.one(*loop.all_but_one) | Intervals.of_table(nodes)
    leaves = Intervals.of_table(tree.leaves) & everything
    return LoopCost(loop, indexing, everything - (leaves - indexing))


def _on_device(
    loop: Loop, nodes: HostOps, index_nodes: HostOps, facts: Facts, device: DeviceWork, tid: int
) -> LoopCost:
    """The device's side: kernels that these ranges launched, and the gaps between them."""
    forward = device.started_in(tid, *loop.all_but_one)
    everything = Intervals.none()
    if len(forward):
        everything = Intervals.one(int(forward.start_ns.min()), int(forward.end_ns.max()))
    indexing = _started_by(loop.indexing, device) | _started_by(index_nodes, device)
    everything = everything | indexing | _started_by(nodes, device)
    gaps = facts[DeviceGaps].spans & everything
    return LoopCost(loop, indexing, indexing | gaps)


def _started_by(ops: HostOps, device: DeviceWork) -> Intervals:
    events = [
        device.started_in(tid, start_ns, end_ns)
        for start_ns, end_ns, tid in zip(ops.start_ns.tolist(), ops.end_ns.tolist(), ops.tid.tolist(), strict=True)
    ]
    if not events:
        return Intervals.none()
    return Intervals.of(np.concatenate([e.start_ns for e in events]), np.concatenate([e.end_ns for e in events]))
