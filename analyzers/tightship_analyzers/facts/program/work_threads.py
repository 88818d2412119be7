"""The threads that issue a step's work: the training thread and torch's backward threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.graph.threads import AUTOGRAD_NODE, backward_nodes
from tightship_analyzers.trace.model import Bools, Int32s

__all__ = ["AUTOGRAD_NODE", "WorkThreads"]


@dataclass(frozen=True, slots=True, eq=False)
class WorkThreads:
    """Rows in `Trace.threads`. On a CPU the backward pass runs on the training thread itself."""

    needs: ClassVar[Needs] = (Window,)

    tids: Int32s

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """A thread that evaluates autograd nodes is a backward thread."""
        window = facts[Window]
        nodes = facts.trace.host_ops.take(backward_nodes(facts.trace))
        return cls(np.union1d(nodes.tid, [window.tid]).astype(np.int32))

    def among(self, tid: Int32s) -> Bools:
        """For each row of a thread column: is it one of these?"""
        return np.isin(tid, self.tids)
