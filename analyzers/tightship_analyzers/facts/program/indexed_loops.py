"""Python loops that pick one slice of a tensor per iteration, seen in the order of operators.

[Note: finding a loop] In the outermost operators of a forward pass a loop shows as a piece that repeats: `select, cat,
linear, sigmoid, …` 96 times. A piece reaches from one indexing operator to the next one, or, because a body may index
several tensors, to one of the next MAX_PERIOD. torch's own pattern ("for loop indexing" in
torch/profiler/_pattern_matcher.py) compares pieces the same way, but needs a live profiler.

Equal layers of a network repeat too, and their attention may index as well (`qkv[0], qkv[1], qkv[2]`). What tells a
loop over a tensor from them is the Python frame: the loop's indexing operators are all called from one and the same
call of one function. Hence stacks are needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.program.frames import ThreadFrames
from tightship_analyzers.facts.program.op_tree import OpTree
from tightship_analyzers.facts.program.work_threads import AUTOGRAD_NODE
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.trace.model import Bools, HostOps, Int32s, Int64s

INDEXING = frozenset(("aten::select", "aten::slice", "aten::narrow", "aten::index_select", "aten::index"))

MIN_REPEATS = 10
"""Fewer repeats are no loop worth vectorising; the same number as in torch/profiler/_pattern_matcher.py."""

MAX_PERIOD = 4
"""Indexing operators in one loop body that are still recognised."""


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """One execution of a loop within one step."""

    iterations_ns: Int64s
    """(n + 1,) where each iteration begins (ns), and where the last one ends."""
    body: HostOps
    """Outermost operators of all iterations."""
    per_iteration: int
    """Outermost operators in one iteration."""
    indexing: HostOps
    """The indexing operators of all iterations but the first."""

    @property
    def count(self) -> int:
        """Iterations."""
        return len(self.iterations_ns) - 1

    @property
    def all_but_one(self) -> tuple[int, int]:
        """From the start of the second iteration to the end of the last one, ns."""
        return int(self.iterations_ns[1]), int(self.iterations_ns[-1])


@dataclass(frozen=True, slots=True, eq=False)
class IndexedLoops:
    """All loops of at least MIN_REPEATS iterations in the steps' forward passes."""

    needs: ClassVar[Needs] = (Steps, OpTree, ThreadFrames)

    loops: list[Loop]

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """Needs operators, steps and stacks."""
        tree, steps, stacks = facts[OpTree], facts[Steps], facts[ThreadFrames]
        names = facts.trace.names
        top = tree.top
        top = top.take((top.tid == steps.tid) & ~names.mask(top.name, lambda name: name.startswith(AUTOGRAD_NODE)))
        is_indexing = names.mask(top.name, INDEXING.__contains__)
        bounds = np.searchsorted(top.start_ns, steps.host_bounds_ns)
        loops: list[Loop] = []
        for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            cuts = np.flatnonzero(is_indexing[first:last])
            for at, size, repeats in _repeats(top.name[first:last], cuts):
                rows = first + at + size * np.arange(repeats + 1)
                loops.extend(_loop(top, is_indexing, part) for part in _same_call(top, rows, stacks))
        return cls(loops)


def _repeats(name: Int32s, cuts: Int64s) -> Iterator[tuple[int, int, int]]:
    """Pieces that repeat at least MIN_REPEATS times: row at which the first begins, rows in each, how many."""
    at = 0
    while at < len(cuts):
        begin = int(cuts[at])
        best = (0, 1, 0)
        for after in cuts[at + 1 : at + 1 + MAX_PERIOD].tolist():
            size = after - begin
            repeats = _equal_rows(name, begin, size) // size + 1
            # The shortest piece that explains as many rows: twice a body is no body.
            if repeats >= MIN_REPEATS and repeats * size > best[1] * best[2] + size:
                best = (begin, size, repeats)
        if best[2]:
            yield best
            at = int(np.searchsorted(cuts, begin + best[1] * best[2]))
        else:
            at += 1


def _equal_rows(name: Int32s, begin: int, size: int) -> int:
    """How many rows from `begin` on equal the row `size` further down, without a break."""
    at, chunk = begin, 4 * MIN_REPEATS
    while at < len(name) - size:
        stop = min(at + chunk, len(name) - size)
        differs = np.flatnonzero(name[at:stop] != name[at + size : stop + size])
        if len(differs):
            return at + int(differs[0]) - begin
        at, chunk = stop, 2 * chunk
    return at - begin


def _same_call(top: HostOps, rows: Int64s, stacks: ThreadFrames) -> Iterator[Int64s]:
    """The parts of a repetition whose iterations begin in one and the same call of a function."""
    callers = [stacks.file_at(int(top.start_ns[row]), int(top.end_ns[row])) for row in rows[:-1].tolist()]
    begin = 0
    for at in range(1, len(callers) + 1):
        if at == len(callers) or callers[at] != callers[begin]:
            if at - begin >= MIN_REPEATS and callers[begin] is not None:
                yield rows[begin : at + 1]
            begin = at


def _loop(top: HostOps, is_indexing: Bools, rows: Int64s) -> Loop:
    first, second, stop = int(rows[0]), int(rows[1]), int(rows[-1])
    later = np.arange(second, stop)
    return Loop(
        iterations_ns=np.append(top.start_ns[rows[:-1]], top.end_ns[stop - 1]),
        body=top.take(np.arange(first, stop)),
        per_iteration=second - first,
        indexing=top.take(later[is_indexing[later]]),
    )
