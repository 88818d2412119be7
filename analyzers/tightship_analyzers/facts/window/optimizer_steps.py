"""Calls of the optimizer: what torch itself annotates in every training loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.trace.model import Annotations
from tightship_analyzers.trace.step_marks import OPTIMIZER


@dataclass(frozen=True, slots=True, eq=False)
class OptimizerSteps:
    """Calls of the optimizer on the training thread, outermost ones only (an optimizer may wrap another)."""

    needs: ClassVar[Needs] = ()

    calls: Annotations
    tid: int
    """The training thread: the one that made most of the calls. Row in `Trace.threads`."""

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """From torch's own annotation `Optimizer.step#<class>.step`."""
        calls = facts.trace.annotations_named(OPTIMIZER)
        if not len(calls):
            return NotApplicable("needs calls of an optimizer; the trace holds none")
        tid = int(np.bincount(calls.tid).argmax())
        calls = calls.take(calls.tid == tid)
        # Sorted by start, the enclosing one first: what ends after every earlier one is not inside any.
        latest = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(calls.end_ns)[:-1]))
        return cls(calls=calls.take(calls.end_ns > latest), tid=tid)
