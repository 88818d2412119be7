"""What each call of the optimizer did, on the host and on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.kernels.device_work import DeviceWork
from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.facts.program.op_tree import OpTree
from tightship_analyzers.facts.program.work_threads import AUTOGRAD_NODE
from tightship_analyzers.facts.window.optimizer_steps import OptimizerSteps
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Bools, DeviceEvents, HostOps, Int32s, Int64s, Table
from tightship_analyzers.trace.step_marks import OPTIMIZER
from tightship_platform.text import shown

MAX_NAME = 60
MOST_FRAC = 0.9
"""Of an update's operators those that run once, or a few times, for each parameter tensor; the rest runs for all."""
MANY_TENSORS = ("aten::_foreach_", "aten::_fused_")
_MATRIX_WORK = frozenset(("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::convolution"))


@dataclass(frozen=True, slots=True, eq=False)
class OptimizerCall:
    """One call of the optimizer within the window; of one that evaluates a closure what follows the closure."""

    start_ns: int
    """After a closure: when its last gradient was there."""
    end_ns: int
    after_closure: bool
    """The call evaluates a closure, with forward and backward pass; most optimizers do so once, before the update."""
    operators: int
    """Outermost operators in it."""
    parameters: int
    """How often nearly all of its outermost operators ran: once, or a few times, per parameter tensor in a
    single-tensor update."""
    host: Intervals
    """Time of the thread in those operators."""
    many_tensors: bool
    """It uses foreach or fused operators."""
    elementwise: bool
    """It does not multiply matrices: nothing but updates."""
    active: Intervals
    """From the first to the last piece of its work on the device timeline."""
    work: Intervals
    """Its work: device events, on a CPU the innermost operators."""
    one_pass: Intervals
    """The part of `work` that is a single pass over all parameters: all events of the most expensive name."""
    other_rows: Int64s
    """Rows of `Trace.device_events` of the rest of `work`; none on a CPU."""


@dataclass(frozen=True, slots=True, eq=False)
class OptimizerWork:
    """All calls within the window."""

    needs: ClassVar[Needs] = (Window, OptimizerSteps, OpTree)

    calls: list[OptimizerCall]
    tid: int
    """Thread that calls it; row of `Trace.threads`."""
    optimizer: str
    """Class of the optimizer as torch names it, such as `Adam`."""

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Needs optimizer annotations and operators."""
        window, optimizer, tree = facts[Window], facts[OptimizerSteps], facts[OpTree]
        calls = optimizer.calls
        calls = calls.take((calls.start_ns >= window.host_start_ns) & (calls.end_ns <= window.host_end_ns))
        if not len(calls):
            return NotApplicable("needs a whole call of the optimizer within the window")
        names = facts.trace.names
        nodes = tree.ops.take(names.mask(tree.ops.name, lambda name: name.startswith(AUTOGRAD_NODE)))
        found = [
            _call(facts, tree, nodes, optimizer.tid, start_ns, end_ns)
            for start_ns, end_ns in zip(calls.start_ns.tolist(), calls.end_ns.tolist(), strict=True)
        ]
        label = names[int(np.bincount(calls.name).argmax())]
        return cls(found, optimizer.tid, shown(label.removeprefix(OPTIMIZER).removesuffix(".step"), MAX_NAME))


def _call(facts: Facts, tree: OpTree, nodes: HostOps, tid: int, start_ns: int, end_ns: int) -> OptimizerCall:
    """:param nodes: of the backward pass, by start."""
    inside = slice(*np.searchsorted(nodes.start_ns, (start_ns, end_ns)).tolist())
    after_closure = inside.start < inside.stop
    if after_closure:
        start_ns = min(int(nodes.end_ns[inside].max()), end_ns)
    first, stop = np.searchsorted(tree.ops.start_ns, (start_ns, end_ns))
    rows = np.arange(int(first), int(stop))
    rows = rows[tree.ops.tid[rows] == tid]
    top = tree.ops.take(rows[tree.is_top[rows]])
    used = [facts.trace.names[number] for number in np.unique(top.name).tolist()]
    device = facts.find(DeviceWork)
    work: DeviceEvents | HostOps
    if device is not None:
        numbers = device.numbers_in(tid, start_ns, end_ns)
        work, device_rows = device.events.take(numbers), device.row[numbers]
    else:
        work, device_rows = tree.ops.take(rows[tree.is_leaf[rows]]), np.empty(0, np.int64)
    in_pass = _one_pass(work)
    return OptimizerCall(
        start_ns=start_ns,
        end_ns=end_ns,
        after_closure=after_closure,
        operators=len(top),
        parameters=_parameters(top.name),
        host=Intervals.of_table(top),
        many_tensors=any(name.startswith(MANY_TENSORS) for name in used),
        elementwise=_MATRIX_WORK.isdisjoint(used),
        active=_hull(work),
        work=Intervals.of_table(work),
        one_pass=Intervals.of_table(work.take(in_pass)),
        other_rows=device_rows[~in_pass] if len(device_rows) else device_rows,
    )


def _parameters(names: Int32s) -> int:
    """The count that most operators share, or the largest of which nearly all are multiples: an update may run one of
    them twice for each tensor."""
    counts = np.bincount(names)
    counts = counts[counts > 0]
    if not len(counts):
        return 0
    most = [int(np.bincount(counts).argmax())]
    most += [count for count in set(counts.tolist()) if counts[counts % count == 0].sum() >= MOST_FRAC * len(names)]
    return max(most)


def _hull(work: Table) -> Intervals:
    if not len(work):
        return Intervals.none()
    return Intervals.one(int(work.start_ns.min()), int(work.end_ns.max()))


def _one_pass(work: DeviceEvents | HostOps) -> Bools:
    """Which rows have the costliest name."""
    if not len(work):
        return np.zeros(0, np.bool_)
    same: Bools = work.name == np.bincount(work.name, weights=work.dur_ns).argmax()
    return same
