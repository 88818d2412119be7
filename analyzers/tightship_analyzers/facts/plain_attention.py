"""Attention that is spelt out as two matrix products with a softmax between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from tightship_analyzers.facts.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts, NotApplicable
from tightship_analyzers.facts.op_shapes import OpShapes
from tightship_analyzers.facts.window import Window
from tightship_analyzers.trace.columns import EventKind
from tightship_analyzers.trace.model import Int64s

SOFTMAX = frozenset(("aten::_softmax", "aten::_safe_softmax"))
SOFTMAX_BACKWARD = frozenset(("aten::_softmax_backward_data",))
MIN_SEQUENCE = 128
"""Below this the scores fit into caches, and a fused kernel gains little."""
MAX_BETWEEN = 40
"""Operators of one thread, nested ones included, between a product and the softmax: scaling, masking, dropout."""
PRODUCTS = frozenset(("aten::bmm", "aten::baddbmm", "aten::mm"))


@dataclass(frozen=True, slots=True, eq=False)
class PlainAttention:
    """The kernels that only move scores between the two products: softmax, scaling, masking, and their backward."""

    calls: Int64s
    """Row in `Trace.host_ops` of each softmax."""
    rows: Int64s
    """(kernels,) in `KernelOps`."""
    products: Int64s
    """Rows in `Trace.host_ops` of the products on either side, ascending."""
    sequence: int
    """The longest one: keys that a query attends to."""

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Needs recorded shapes: scores are a tensor of (batch, heads, queries, keys)."""
        kernels, shapes, window = facts.get(KernelOps), facts.get(OpShapes), facts.get(Window)
        for fact in (kernels, shapes, window):
            if isinstance(fact, NotApplicable):
                return fact
        assert isinstance(kernels, KernelOps) and isinstance(shapes, OpShapes)
        ops, names = facts.trace.host_ops, facts.trace.names
        is_product = names.mask(ops.name, PRODUCTS.__contains__)
        is_softmax = names.mask(ops.name, (SOFTMAX | SOFTMAX_BACKWARD).__contains__)
        wanted = np.zeros(len(ops) + 1, dtype=np.bool_)
        calls, around, sequence = [], set[int](), 0
        for tid in np.unique(ops.tid[is_softmax]).tolist() if is_softmax.any() else ():
            own = np.flatnonzero(ops.tid == tid)
            products = np.flatnonzero(is_product[own])
            for at in np.flatnonzero(is_softmax[own]).tolist():
                dims = shapes.of(ops, int(own[at])).dims
                scores = dims[0] if dims else ()
                after = int(np.searchsorted(products, at))
                if len(scores) not in (3, 4) or min(scores[-2:]) < MIN_SEQUENCE or not 0 < after < len(products):
                    continue
                before, behind = int(products[after - 1]), int(products[after])
                if at - before > MAX_BETWEEN or behind - at > MAX_BETWEEN:
                    continue
                calls.append(int(own[at]))
                around |= {int(own[before]), int(own[behind])}
                sequence = max(sequence, scores[-1])
                between = own[before + 1 : behind]
                elements = [_elements(shapes.of(ops, row).dims) for row in between.tolist()]
                size = _elements((scores,))
                wanted[between[np.array([count == size for count in elements], dtype=np.bool_)]] = True
        computes = kernels.events.kind == EventKind.KERNEL
        return cls(
            calls=np.array(calls, dtype=np.int64),
            rows=np.flatnonzero(wanted[kernels.op] & computes),
            products=np.array(sorted(around), dtype=np.int64),
            sequence=sequence,
        )


def _elements(dims: tuple[tuple[int, ...], ...]) -> int:
    """Of the largest input."""
    return max((int(np.prod(sizes, dtype=np.int64)) for sizes in dims if sizes), default=0)
