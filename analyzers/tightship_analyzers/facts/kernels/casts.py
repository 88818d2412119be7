"""Copies that change the element type of a tensor, on the device: on a CPU the operators themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.program.op_shapes import Dims, OpShapes
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.trace.model import Int64s

MAX_APART = 64
"""Operators of one thread, nested ones included, within which a cast back belongs to a cast."""


@dataclass(frozen=True, slots=True)
class Cast:
    """One conversion."""

    at: int
    """Row in `KernelOps`; on a CPU the same as `op`."""
    op: int
    """Row in `Trace.host_ops`."""
    dims: Dims
    from_type: str
    to_type: str


@dataclass(frozen=True, slots=True, eq=False)
class Casts:
    """All of them within the window, by operator."""

    needs: ClassVar[Needs] = (Window, OpShapes)

    casts: list[Cast]

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """Needs recorded shapes."""
        kernels, shapes, window = facts.find(KernelOps), facts[OpShapes], facts[Window]
        ops, copies = facts.trace.host_ops, facts.trace.names.id("aten::copy_")
        if kernels is None:
            inside = (ops.start_ns >= window.claim_start_ns) & (ops.end_ns <= window.claim_end_ns)
            by = rows = np.flatnonzero(inside & (ops.name == copies))
        else:
            rows = kernels.kernels_of(ops, [copies])
            rows = rows[np.argsort(kernels.op[rows], kind="stable")]
            by = kernels.op[rows]
        casts = []
        for at, op in zip(rows.tolist(), by.tolist(), strict=True):
            inputs = shapes.of(ops, op)
            if len(inputs.types) >= 2 and len(inputs.dims) >= 2 and inputs.types[0] != inputs.types[1]:
                casts.append(Cast(at, op, inputs.dims[1], inputs.types[1], inputs.types[0]))
        return cls(casts)

    def round_trips(self, tid: Int64s) -> list[tuple[Cast, Cast]]:
        """Casts and the next one back of a tensor of the same sizes; `tid` is the thread of each operator."""
        counted = _numbered(tid)
        waiting: dict[tuple[int, Dims, str, str], Cast] = {}
        pairs = []
        for cast in self.casts:
            thread = int(tid[cast.op])
            before = waiting.pop((thread, cast.dims, cast.to_type, cast.from_type), None)
            if before is not None and counted[cast.op] - counted[before.op] <= MAX_APART:
                pairs.append((before, cast))
            else:
                waiting[thread, cast.dims, cast.from_type, cast.to_type] = cast
        return pairs


def _numbered(tid: Int64s) -> Int64s:
    """(ops,) number of each operator on its thread."""
    numbers = np.empty(len(tid), dtype=np.int64)
    for thread in np.unique(tid).tolist():
        rows = np.flatnonzero(tid == thread)
        numbers[rows] = np.arange(len(rows))
    return numbers
