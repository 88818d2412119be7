"""Convolutions with a bias whose result goes straight into a batch norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.program.op_shapes import OpShapes
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.trace.model import Bools, HostOps, Int64s

CONVOLUTIONS = frozenset(("aten::conv1d", "aten::conv2d", "aten::conv3d"))
NORMS = frozenset(("aten::batch_norm",))
BIAS_INPUT = 2
ADDS_BIAS = frozenset(("aten::add_", "aten::add"))
SUMS_GRADIENT = frozenset(("aten::sum",))
BACKWARD = "ConvolutionBackward0"


@dataclass(frozen=True, slots=True, eq=False)
class BiasedConvolutions:
    """The kernels that add a bias which the norm takes away again, and those that compute its gradient."""

    needs: ClassVar[Needs] = (KernelOps, OpShapes, Window)

    convolutions: int
    rows: Int64s
    """(kernels,) in `KernelOps`."""
    first: Int64s
    """(convolutions,) row in `Trace.host_ops`."""

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """Needs recorded shapes: they tell whether there is a bias."""
        kernels, shapes, window = facts[KernelOps], facts[OpShapes], facts[Window]
        names, ops = facts.trace.names, facts.trace.host_ops
        own = np.flatnonzero(ops.tid == window.tid)
        marks = own[names.mask(ops.name[own], lambda name: name in CONVOLUTIONS or name in NORMS)]
        is_norm = names.mask(ops.name[marks], NORMS.__contains__)
        found = []
        for conv, norm in zip(marks[:-1].tolist(), marks[1:].tolist(), strict=True):
            follows = not is_norm[np.searchsorted(marks, conv)] and is_norm[np.searchsorted(marks, norm)]
            inputs = shapes.of(ops, conv)
            # Nothing but the norm's own dispatch lies between the two where the one feeds the other.
            if (
                follows
                and len(inputs.dims) > BIAS_INPUT
                and inputs.dims[BIAS_INPUT]
                and _adjacent(ops, own, conv, norm)
            ):
                found.append(conv)
        convs = np.array(found, dtype=np.int64)
        adds = _under(ops, convs, names.mask(ops.name, ADDS_BIAS.__contains__))
        numbers = _sequence(ops, convs)
        nodes = (
            np.flatnonzero(np.isin(ops.seq, numbers) & names.mask(ops.name, BACKWARD.__eq__)) if len(numbers) else convs
        )
        sums = _under(ops, nodes, names.mask(ops.name, SUMS_GRADIENT.__contains__))
        chosen = np.zeros(len(ops) + 1, dtype=np.bool_)
        chosen[adds] = chosen[sums] = True
        return cls(len(convs), np.flatnonzero(chosen[kernels.op]), convs)


def _adjacent(ops: HostOps, own: Int64s, conv: int, norm: int) -> bool:
    """No operator of the thread begins between the two."""
    between = own[np.searchsorted(own, conv) : np.searchsorted(own, norm)]
    return bool((ops.start_ns[between] < ops.end_ns[conv]).all())


def _under(ops: HostOps, outer: Int64s, chosen: Bools) -> Int64s:
    """Rows of the chosen operators that lie within one of the outer ones on its thread."""
    inside = [
        row
        for at in outer.tolist()
        for row in range(at, int(np.searchsorted(ops.start_ns, ops.end_ns[at])))
        if chosen[row] and ops.tid[row] == ops.tid[at] and ops.end_ns[row] <= ops.end_ns[at]
    ]
    return np.array(inside, dtype=np.int64)


def _sequence(ops: HostOps, convs: Int64s) -> Int64s:
    """Sequence numbers of the convolutions, or of the operators in them that carry one."""
    numbers = [
        int(ops.seq[row])
        for at in convs.tolist()
        for row in range(at, int(np.searchsorted(ops.start_ns, ops.end_ns[at])))
        if ops.tid[row] == ops.tid[at] and ops.seq[row] >= 0
    ]
    return np.unique(np.array(numbers, dtype=np.int64))
