"""Attention that is spelt out as two matrix products with a softmax between them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.kernels.matrix_products import FACTORS
from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.program.op_shapes import Dims, Inputs, OpShapes
from tightship_analyzers.trace.columns import EventKind
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Bools, HostOps, Int64s

SOFTMAX = frozenset(("aten::_softmax", "aten::_safe_softmax"))
SOFTMAX_BACKWARD = frozenset(("aten::_softmax_backward_data",))
DROPOUT = frozenset(("aten::native_dropout", "aten::bernoulli_"))
"""What `aten::dropout` comes to where it drops anything."""
MIN_SEQUENCE = 128
"""Below this the scores fit into caches, and a fused kernel gains little."""
MAX_BETWEEN = 40
"""Operators of one thread, nested ones included, between a product and the softmax: scaling, masking, dropout."""
PRODUCTS = frozenset(("aten::bmm", "aten::baddbmm", "aten::mm"))

Matrix = tuple[int, int, int]
"""(batch, smaller size, larger size): a matrix and its transpose are alike."""


@dataclass(frozen=True, slots=True, eq=False)
class PlainAttention:
    """What only moves scores between the two products: softmax, scaling, masking, and their backward."""

    needs: ClassVar[Needs] = (OpShapes,)

    calls: Int64s
    """Row in `Trace.host_ops` of each softmax."""
    between: Int64s
    """Rows in `Trace.host_ops` of the operators that do it, none of them around a product; ascending."""
    gone: Mapping[int, Intervals]
    """Thread → their time, and that between two products in which no other operator runs (Python, freed memory)."""
    whole: Mapping[int, Intervals]
    """Thread → from the first product to the last one: forward two, backward four."""
    rows: Int64s
    """(kernels,) in `KernelOps`; none on a CPU."""
    products: Int64s
    """Rows in `Trace.host_ops` of the products on either side, ascending."""
    sequence: int
    """The longest one: keys that a query attends to."""
    drops: bool
    """Weights are dropped at random between the products."""

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """Needs recorded shapes: scores are a tensor of (batch, heads, queries, keys)."""
        kernels, shapes = facts.find(KernelOps), facts[OpShapes]
        ops, names = facts.trace.host_ops, facts.trace.names
        is_product = names.mask(ops.name, PRODUCTS.__contains__)
        is_softmax = names.mask(ops.name, (SOFTMAX | SOFTMAX_BACKWARD).__contains__)
        wanted = np.zeros(len(ops) + 1, dtype=np.bool_)
        calls, around, sequence = [], set[int](), 0
        gone, whole = dict[int, Intervals](), dict[int, Intervals]()
        for tid in np.unique(ops.tid[is_softmax]).tolist() if is_softmax.any() else ():
            own = np.flatnonzero(ops.tid == tid)
            products = np.flatnonzero(is_product[own])
            matrices = [_matrices(names[int(ops.name[row])], shapes.of(ops, row)) for row in own[products].tolist()]
            hulls = list[tuple[int, int, int, int]]()
            for at in np.flatnonzero(is_softmax[own]).tolist():
                dims = shapes.of(ops, int(own[at])).dims
                scores = dims[0] if dims else ()
                if len(scores) not in (3, 4) or min(scores[-2:]) < MIN_SEQUENCE:
                    continue
                backward = names[int(ops.name[own[at]])] in SOFTMAX_BACKWARD
                near = np.searchsorted(products, (at - MAX_BETWEEN, at, at + MAX_BETWEEN + 1)).tolist()
                found = _around(_matrix(scores), matrices, *near, backward=backward)
                if found is None:
                    continue
                before, behind = products[list(found)].tolist()
                calls.append(int(own[at]))
                around |= {int(own[before]), int(own[behind])}
                sequence = max(sequence, scores[-1])
                between = own[before + 1 : behind]
                between = between[ops.end_ns[between] <= ops.start_ns[own[behind]]]
                elements = [_elements(shapes.of(ops, row).dims) for row in between.tolist()]
                size = _elements((scores,))
                wanted[between[np.array([count == size for count in elements], dtype=np.bool_)]] = True
                first, last = products[list(_both(_matrix(scores), matrices, *found, backward=backward))].tolist()
                hulls.append((int(own[first]), int(own[before]), int(own[behind]), int(own[last])))
            if hulls:
                whole[tid], inner = _spans(ops, np.array(hulls, dtype=np.int64))
                mine = ops.take(own[wanted[own]])
                others = ops.take(own[~wanted[own] & ~_around_any(ops.take(own), products)])
                gone[tid] = Intervals.of_table(mine) | (inner - Intervals.of_table(others))
        rows = np.array([], dtype=np.int64)
        if kernels is not None:
            rows = np.flatnonzero(wanted[kernels.op] & (kernels.events.kind == EventKind.KERNEL))
        between = np.flatnonzero(wanted[:-1])
        return cls(
            calls=np.array(calls, dtype=np.int64),
            between=between,
            gone=gone,
            whole=whole,
            rows=rows,
            products=np.array(sorted(around), dtype=np.int64),
            sequence=sequence,
            drops=bool(names.mask(ops.name[between], DROPOUT.__contains__).any()),
        )


def _around(
    scores: Matrix, matrices: list[tuple[Matrix, ...]], first: int, at: int, end: int, *, backward: bool
) -> tuple[int, int] | None:
    """The nearest products before and behind a softmax that lies at `at` among them, as far as they are of its scores.

    Forward, the one before gives the scores. Backward, it gives their gradient or, for that of the values, takes the
    weights. The one behind takes the scores, or their gradient.
    """
    before = next((n for n in range(at - 1, first - 1, -1) if scores in matrices[n][0 if backward else 2 :]), None)
    behind = next((n for n in range(at, end) if scores in matrices[n][:2]), None)
    return None if before is None or behind is None else (before, behind)


def _both(
    scores: Matrix, matrices: list[tuple[Matrix, ...]], before: int, behind: int, *, backward: bool
) -> tuple[int, int]:
    """The first and the last product of its scores: the backward of a product is two, one after the other."""
    if backward and before and scores in matrices[before - 1]:
        before -= 1
    if backward and behind + 1 < len(matrices) and scores in matrices[behind + 1]:
        behind += 1
    return before, behind


def _spans(ops: HostOps, hulls: Int64s) -> tuple[Intervals, Intervals]:
    """From the first product to the last, and between the inner two.

    :param hulls: (calls, 4) rows of the first one, the one before, the one behind, the last one.
    """
    first, before, behind, last = hulls.T
    return Intervals.of(ops.start_ns[first], ops.end_ns[last]), Intervals.of(ops.end_ns[before], ops.start_ns[behind])


def _around_any(ops: HostOps, rows: Int64s) -> Bools:
    """(ops,) does it enclose one of these, or is it one? Of one thread."""
    first = np.searchsorted(rows, np.arange(len(ops)))
    starts_ns = np.append(ops.start_ns[rows], np.iinfo(np.int64).max)
    found: Bools = starts_ns[first] < ops.end_ns
    return found


def _matrices(name: str, inputs: Inputs) -> tuple[Matrix, ...]:
    """Both factors of a product, and what it gives; empty where the sizes are not known."""
    factors = inputs.dims[FACTORS[name] :][:2]
    if len(factors) < 2 or min(map(len, factors)) < 2:
        return ()
    left, right = factors
    return _matrix(left), _matrix(right), _matrix((*left[:-1], right[-1]))


def _matrix(dims: Dims) -> Matrix:
    return math.prod(dims[:-2]), min(dims[-2:]), max(dims[-2:])


def _elements(dims: tuple[tuple[int, ...], ...]) -> int:
    """Of the largest input."""
    return max((int(np.prod(sizes, dtype=np.int64)) for sizes in dims if sizes), default=0)
