"""Collectives that gloo carries out on the host: who issued each, how long it took, and how much it moved."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from tightship_analyzers.facts.kernels.collective_calls import CollectiveCalls
from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.facts.program.op_shapes import MAX_DIMS
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.trace.model import Int32s, Int64s, Trace

GLOO, ISSUED = "gloo:", "c10d::"
"""How torch names the ranges of gloo's threads, and the operators that queue them."""
MAX_ELEMENT_BYTES = 8
"""Of a list of tensors torch does not record the type: the widest one bounds what it moves."""


@dataclass(frozen=True, slots=True, eq=False)
class GlooCalls:
    """Collectives of whole steps, by the time they were issued.

    A process group's collectives run in the order in which they were issued, so the n-th operator of a kind belongs to
    the n-th range of that kind. Where a step holds not as many of one as of the other, its collectives of that kind are
    left out.
    """

    needs: ClassVar[Needs] = (Steps,)

    kind: Int32s
    """(calls,) name number of the range, such as `gloo:all_reduce`."""
    step: Int64s
    """(calls,) number of the step."""
    op: Int64s
    """(calls,) row in `Trace.host_ops` of the operator that issued it."""
    start_ns: Int64s
    """(calls,) when its range began …"""
    end_ns: Int64s
    """… and ended."""
    most_bytes: Int64s
    """(calls,) what goes in, at most; -1 where sizes are not recorded."""

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Needs a job on the CPU, and ranges of gloo."""
        trace, steps = facts.trace, facts[Steps]
        if trace.device_kind != "cpu":
            return NotApplicable("needs a job on the CPU")
        marks, ops, names = trace.annotations, trace.host_ops, trace.names
        kinds = {number: _bare(names[number], GLOO) for number in _named(trace, marks.name, GLOO)}
        issued = {number: _bare(names[number], ISSUED) for number in _named(trace, ops.name, ISSUED)}
        if not kinds:
            return NotApplicable("needs communication between ranks; the trace holds none")
        pairs: list[tuple[int, int, int, int]] = []
        for number, bare in kinds.items():
            ranges = np.flatnonzero(marks.name == number)
            calls = np.flatnonzero(np.isin(ops.name, [at for at, name in issued.items() if name == bare]))
            began = np.searchsorted(steps.host_bounds_ns, marks.start_ns[ranges], side="right") - 1
            queued = np.searchsorted(steps.host_bounds_ns, ops.start_ns[calls], side="right") - 1
            for step in range(steps.count):
                mine, own = ranges[began == step], calls[queued == step]
                if len(mine) == len(own):
                    pairs += [(number, step, op, at) for op, at in zip(own.tolist(), mine.tolist(), strict=True)]
        found = np.array(sorted(pairs, key=lambda pair: pair[2]), dtype=np.int64).reshape(-1, 4)
        sizes = {number: _most_bytes(trace, number) for number in np.unique(ops.shapes[found[:, 2]]).tolist()}
        return cls(
            kind=found[:, 0].astype(np.int32),
            step=found[:, 1],
            op=found[:, 2],
            start_ns=marks.start_ns[found[:, 3]],
            end_ns=marks.end_ns[found[:, 3]],
            most_bytes=np.array([sizes[number] for number in ops.shapes[found[:, 2]].tolist()], dtype=np.int64),
        )


@dataclass(frozen=True, slots=True, eq=False)
class RecordedCollectives:
    """There are collectives to judge: `CollectiveCalls` of a device, in a job on the CPU `GlooCalls`."""

    needs: ClassVar[Needs] = ()

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Needs one of the two."""
        missing = facts.missing((GlooCalls,) if facts.trace.device_kind == "cpu" else (CollectiveCalls,))
        return cls() if missing is None else missing


def _named(trace: Trace, column: Int32s, prefix: str) -> list[int]:
    return [number for number in np.unique(column).tolist() if trace.names[number].startswith(prefix)]


def _bare(name: str, prefix: str) -> str:
    """`allreduce` of `gloo:all_reduce` and of `c10d::allreduce_`."""
    return name.removeprefix(prefix).replace("_", "")


def _most_bytes(trace: Trace, number: int) -> int:
    """Of the tensors in the first input: one, or a list of them."""
    if number < 0:
        return -1
    try:
        dims = json.loads(trace.shapes[number].dims or "[]")
    except ValueError:
        return -1
    first = dims[0] if isinstance(dims, list) and dims else []
    tensors = first if isinstance(first, list) and first and isinstance(first[0], list) else [first]
    elements = [math.prod(sizes) for sizes in tensors if _is_sizes(sizes)]
    return sum(elements) * MAX_ELEMENT_BYTES if elements else -1


def _is_sizes(sizes: Any) -> bool:
    if not isinstance(sizes, list) or not 0 < len(sizes) <= MAX_DIMS:
        return False
    return all(isinstance(size, int) and 0 <= size < 2**40 for size in sizes)
