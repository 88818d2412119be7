"""The training steps of a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.facts.window.optimizer_steps import OptimizerSteps
from tightship_analyzers.facts.window.period import Period
from tightship_analyzers.trace.model import Annotations, Int64s, Trace
from tightship_analyzers.trace.step_marks import PROFILER, START

LONGER = "`tightship profile RUN --duration 30s` records for longer"
HOW_TO_MARK = f'{LONGER}; what has no optimizer marks them itself: record_function(f"ProfilerStep#{{n}}")'
"""What gets them; the mark is that of prof.step()."""


@dataclass(frozen=True, slots=True, eq=False)
class Steps(Period):
    """Whole training steps within the trace, one after another.

    A step reaches from the end of one optimizer step to the end of the next, so that what happens between two steps
    (the next batch, a checkpoint) belongs to the step that it delays. Where a program marks its own steps
    (`ProfilerStep#n`), those are used.
    """

    needs: ClassVar[Needs] = ()

    first: int = 0
    """Number of the first step; above 0 where a later one was picked."""

    @property
    def durations_ns(self) -> Int64s:
        """(steps,)"""
        return np.diff(self.bounds_ns)

    def number_at(self, time_ns: int) -> int | None:
        """Number of the step that an instant falls into, counted from 0; None outside of all."""
        if not self.start_ns <= time_ns < self.end_ns:
            return None
        return self.first + int(np.searchsorted(self.bounds_ns, time_ns, side="right")) - 1

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """From marks of the program where there are any, else from the optimizer; as far as the device was recorded."""
        marks = _profiler_marks(facts.trace)
        if marks is not None:
            bounds, tid = marks
        else:
            optimizer = facts.find(OptimizerSteps)
            if optimizer is None:
                return NotApplicable(f"needs steps, and the recording marks none: {HOW_TO_MARK}")
            bounds, tid = np.unique(_once_a_step(facts.trace, optimizer.calls).end_ns), optimizer.tid
            if len(bounds) < 2:
                return NotApplicable(f"needs steps, and the recording holds the end of one only: {LONGER}")
        covered_ns = facts.trace.covered_end_ns
        if covered_ns is not None:
            bounds = bounds[bounds <= covered_ns]
            if len(bounds) < 2:
                return NotApplicable("needs device events of a whole step; the trace holds none")
        return cls(bounds_ns=bounds, tid=tid)


def _once_a_step(trace: Trace, calls: Annotations) -> Annotations:
    """Of the optimizers of a loop (one for matrices and one for the rest, or two players) the calls of the one that was
    called most often, of several the last one: so the step counter counts, too. Two of one class look like one."""
    start = calls.name == trace.names.id(START)
    if start.all():
        return calls
    count = np.bincount(calls.name[~start])
    often = calls.name[~start & np.isin(calls.name, np.flatnonzero(count == count.max()))]
    return calls.take(start | (calls.name == often[-1]))


def _profiler_marks(trace: Trace) -> tuple[Int64s, int] | None:
    marks = trace.annotations_named(PROFILER)
    if not len(marks):
        return None
    tid = int(np.bincount(marks.tid).argmax())
    marks = marks.take(marks.tid == tid)
    if len(marks) == 1:
        return np.array([marks.start_ns[0], marks.end_ns[0]], dtype=np.int64), tid
    # The last mark ends when recording stops, which may be in the middle of a step.
    return np.unique(marks.start_ns), tid
