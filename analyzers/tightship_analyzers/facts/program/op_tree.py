"""How the operators of the work threads enclose each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.facts.program.work_threads import WorkThreads
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.trace.joins import numbers_in
from tightship_analyzers.trace.model import Bools, HostOps


@dataclass(frozen=True, slots=True, eq=False)
class OpTree:
    """Operators of the work threads that share time with the window, by start."""

    needs: ClassVar[Needs] = (Window, WorkThreads)

    ops: HostOps
    is_top: Bools
    """(ops,) no other operator of its thread encloses it."""
    is_leaf: Bools
    """(ops,) it encloses no other: this is where the work is done, all around it is dispatch."""

    @property
    def top(self) -> HostOps:
        """The outermost operators."""
        return self.ops.take(self.is_top)

    @property
    def leaves(self) -> HostOps:
        """The innermost operators."""
        return self.ops.take(self.is_leaf)

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Operators of one thread nest, so order of start decides."""
        window, trace = facts[Window], facts.trace
        if not len(trace.host_ops):
            return NotApplicable("needs operators; the trace holds none")
        ops = trace.host_ops.overlapping(window.host_start_ns, window.end_ns)
        ops = ops.take(facts[WorkThreads].among(ops.tid))
        is_top, is_leaf = np.zeros(len(ops), np.bool_), np.zeros(len(ops), np.bool_)
        for tid in numbers_in(ops.tid).tolist():
            rows = np.flatnonzero(ops.tid == tid)
            start, end = ops.start_ns[rows], ops.end_ns[rows]
            is_top[rows[0]], is_leaf[rows[-1]] = True, True
            is_top[rows[1:]] = end[1:] > np.maximum.accumulate(end)[:-1]
            is_leaf[rows[:-1]] = start[1:] >= end[:-1]
        return cls(ops, is_top, is_leaf)
