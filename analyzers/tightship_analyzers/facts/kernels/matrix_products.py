"""Matrix products with their sizes, and the kernels that ran them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import numpy as np

from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.program.op_shapes import Inputs, OpShapes

FACTORS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}
"""Operator → which input is the first factor."""


class Product(NamedTuple):
    """One kernel of a product (batch, m, k) × (batch, k, n)."""

    at: int
    """Row in `KernelOps`."""
    batch: int
    m: int
    k: int
    n: int
    dtype: str

    @property
    def flops(self) -> int:
        """A multiply-add counts two."""
        return 2 * self.batch * self.m * self.k * self.n


@dataclass(frozen=True, slots=True, eq=False)
class MatrixProducts:
    """Those that one kernel computed; operators that launched several kernels count with the longest."""

    needs: ClassVar[Needs] = (KernelOps, OpShapes)

    products: list[Product]

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """Needs an accelerator and recorded shapes."""
        kernels, shapes = facts[KernelOps], facts[OpShapes]
        ops, names = facts.trace.host_ops, facts.trace.names
        wanted = {names.id(name): at for name, at in FACTORS.items() if names.id(name) >= 0}
        rows = kernels.kernels_of(ops, wanted)
        longest: dict[int, int] = {}
        for at in rows[np.argsort(kernels.events.dur_ns[rows], kind="stable")].tolist():
            longest[int(kernels.op[at])] = at
        found = (_product(at, shapes.of(ops, op), wanted[int(ops.name[op])]) for op, at in sorted(longest.items()))
        return cls([product for product in found if product is not None])


def _product(at: int, inputs: Inputs, first: int) -> Product | None:
    if len(inputs.dims) < first + 2 or len(inputs.types) <= first:
        return None
    left, right = inputs.dims[first], inputs.dims[first + 1]
    if len(left) != len(right) or len(left) not in (2, 3) or left[-1] != right[-2]:
        return None
    batch = left[0] if len(left) == 3 else 1
    product = Product(at, batch, left[-2], left[-1], right[-1], inputs.types[first])
    return product if min(product[1:5]) > 0 else None
