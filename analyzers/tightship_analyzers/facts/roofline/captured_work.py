"""The work of kernels that a graph replays, by what the capture of the graph tells of their sizes.

[Note: products of experts] Triton's kernels are no operators, and their operands are not recorded as inputs of one. The
library triton_kernels names its product by element types and tiles (`_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1`:
result, rows, weights), and makes a view of the weights (experts × inner × columns, 4-bit numbers two in a byte) just
before the launch, as of rows and result. Rows count as those of the longer one of the two: a product that gathers rows
for its experts has them in its result, one that scatters them in its input. All experts count as read, and the result
as written in full, where an activation fused into it may leave half. Source:
https://github.com/triton-lang/triton/tree/main/python/triton_kernels (matmul_ogs).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import ClassVar, NamedTuple, Self

import numpy as np

from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.facts.program.op_shapes import Dims, Inputs, decoded
from tightship_analyzers.facts.roofline.work import ELEMENT, Family, Work, work_of
from tightship_analyzers.trace.model import CapturedCall

EXPERTS = re.compile(r"_p?_?matmul_ogs_[NT]{3}_(?P<result>\w+?)x(?P<rows>\w+?)x(?P<weights>[a-z]\w*?)_\d+x\d+x\d+x\d+")
TYPES = {"bf16": "c10::bfloat16", "fp16": "c10::half", "fp8e4nv": "c10::float8_e4m3fn", "fp8e5": "c10::float8_e5m2"}
"""Element type as Triton names it → as torch does."""
PACKED, PACKED_TYPE = "mxfp4", "unsigned char"
"""Two numbers in a byte."""
BLOCK = 32
"""Numbers that share a scale of one byte. Source: OCP Microscaling Formats (MX) Specification 1.0, section 5."""
FUSED = (1, 2)
"""Columns of the product for each of the result: a gated activation, fused into it, halves them."""


class CapturedWork(NamedTuple):
    """One replayed kernel with known work."""

    row: int
    """Row in `KernelOps`."""
    op: str
    inputs: Inputs
    """Of the operator; of a product of experts (rows × inner) and (experts × inner × columns)."""
    work: Work


@dataclass(frozen=True, slots=True, eq=False)
class CapturedWorks:
    """Replayed kernels whose work their capture tells."""

    needs: ClassVar[Needs] = (KernelOps,)

    calls: tuple[CapturedWork, ...]

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Needs captures of the replayed graphs."""
        captured, kernels = facts.trace.captured, facts[KernelOps]
        if captured is None:
            return NotApplicable("needs the captures of replayed graphs")
        names = facts.trace.names
        at = np.minimum(np.searchsorted(captured.row, kernels.row), len(captured.row) - 1)
        rows = np.flatnonzero(captured.row[at] == kernels.row)
        known: dict[tuple[int, int], tuple[Inputs, Work] | None] = {}
        found = []
        for row, call, name in zip(
            rows.tolist(), captured.call[at[rows]].tolist(), kernels.events.name[rows].tolist(), strict=True
        ):
            if (call, name) not in known:
                known[call, name] = captured_work(captured.calls[call], names[name])
            known_work = known[call, name]
            if known_work is not None:
                found.append(CapturedWork(row, captured.calls[call].op or names[name], *known_work))
        return cls(tuple(found))


def captured_work(call: CapturedCall, kernel: str) -> tuple[Inputs, Work] | None:
    """Inputs and work of one kernel; None where they do not say. Of operators that launch several kernels no one has
    the whole work."""
    match = EXPERTS.match(kernel)
    if match is not None:
        return _experts([decoded(shapes) for shapes in call.touched], **match.groupdict())
    inputs = decoded(call.inputs)
    work = work_of(call.op, inputs, {}) if call.op_kernels == 1 else None
    return None if work is None else (inputs, work)


def _experts(touched: Iterable[Inputs], *, result: str, rows: str, weights: str) -> tuple[Inputs, Work] | None:
    """See [Note: products of experts]."""
    tensors = [(one.dims[0], one.types[0].lower()) for one in touched if one.dims and one.types and one.dims[0]]
    stored = PACKED_TYPE if weights == PACKED else TYPES.get(weights)
    groups = next((dims for dims, kind in reversed(tensors) if len(dims) == 3 and kind == stored), None)
    if groups is None or rows not in TYPES or result not in TYPES:
        return None
    experts, inner, columns = groups[0], groups[1] * (2 if weights == PACKED else 1), groups[2]
    given = _rows(tensors, TYPES[rows], (inner,))
    made = _rows(tensors, TYPES[result], [columns // fused for fused in FUSED])
    if given is None:
        return None
    count = max(given, made or 0)
    name, size = ELEMENT[TYPES[rows]]
    written = count * columns * ELEMENT[TYPES[result]][1]
    read = prod(groups) + (experts * inner * columns // BLOCK if weights == PACKED else 0)
    read *= 1 if weights == PACKED else ELEMENT[TYPES[weights]][1]
    work = Work(Family.GEMM, name, 2 * count * inner * columns, read + given * inner * size + written, written)
    return Inputs(((count, inner), (experts, inner, columns)), (TYPES[rows], stored or "")), work


def _rows(tensors: Iterable[tuple[Dims, str]], kind: str, widths: Iterable[int]) -> int | None:
    """The most rows of a tensor of this type and one of these widths."""
    return max(
        (prod(dims[:-1]) for dims, of in tensors if of == kind and dims[-1] in widths and len(dims) > 1), default=None
    )
