"""The steps of a trace: of training, or the batches of a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.facts.window.optimizer_steps import OptimizerSteps
from tightship_analyzers.facts.window.period import Period
from tightship_analyzers.facts.window.recording import Recording
from tightship_analyzers.trace.model import Annotations, Int64s, Trace
from tightship_analyzers.trace.step_marks import PROFILER, SERVER, START

LAG_FRAC = 0.25
"""Share of the mean step by which the device finishes a step after the host from which steps are counted on the device.
Source: in the reference traces of jobs that wait for their host it is 0 to 3 %; in those of jobs that wait for the
device, whose steps differ by up to a factor of 2.7 on the host and of 1.07 on the device, 25 % to 200 %."""

LONGER = "`tightship profile RUN --duration 30s` records for longer"
HOW_TO_MARK = f'{LONGER}; what has no optimizer marks them itself: record_function(f"ProfilerStep#{{n}}")'
"""What gets them; the mark is that of prof.step()."""


@dataclass(frozen=True, slots=True, eq=False)
class Steps(Period):
    """Whole steps within the trace, one after another.

    A step reaches from the end of one optimizer step to the end of the next, so that what happens between two steps
    (the next batch, a checkpoint) belongs to the step that it delays. Where a program marks its own steps
    (`ProfilerStep#n`), those are used; where nothing trains, what a server marks: from one batch to the next.

    [Note: steps on the device] A device that has always work queued finishes a step long after the host, whose steps
    say little then: the first ones fill the queue, one drains it, and the device works on others meanwhile. Where it is
    behind by more than LAG_FRAC, a step ends when all is done that the host had launched by its end.
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
        optimizer, marks = facts.find(OptimizerSteps), _profiler_marks(facts.trace)
        if marks is None and optimizer is None:
            marks = _server_marks(facts.trace)
        if marks is not None:
            bounds, tid = marks
        else:
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
        ends = _on_device(facts.trace, bounds)
        if ends is None or (covered_ns is not None and ends[-1] > covered_ns):
            ends = bounds
        first = int(np.searchsorted(ends, facts[Recording].unseen_until_ns))
        if len(ends) - first < 2:
            return NotApplicable("needs a whole step; the device's work of the first ones is not in the file")
        return cls(bounds_ns=ends[first:], host_bounds_ns=bounds[first:], tid=tid)


def _on_device(trace: Trace, bounds_ns: Int64s) -> Int64s | None:
    """When the device has done what was launched before each bound; None where it is not far behind.

    Work without a launch in the file was launched before it if the device did it before all work that has one.
    """
    events, launches = trace.device_events, trace.launches
    if not len(events) or not len(launches):
        return None
    linked = events.launch >= 0
    launched_ns = np.where(linked, launches.start_ns[events.launch], events.start_ns)
    launched_ns[np.cumsum(linked) == 0] = trace.start_ns - 1
    order = np.argsort(launched_ns, kind="stable")
    done_ns = np.append(trace.start_ns, np.maximum.accumulate(events.end_ns[order]))
    ends: Int64s = np.maximum(bounds_ns, done_ns[np.searchsorted(launched_ns[order], bounds_ns)])
    lag_ns, mean_ns = int((ends - bounds_ns).max()), int(bounds_ns[-1] - bounds_ns[0]) // (len(bounds_ns) - 1)
    if lag_ns <= LAG_FRAC * mean_ns or (np.diff(ends) <= 0).any():
        return None
    return ends


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


def _server_marks(trace: Trace) -> tuple[Int64s, int] | None:
    """One mark alone is what the host did for a batch, which says little of how long it took."""
    is_mark = trace.names.mask(trace.annotations.name, lambda name: SERVER.match(name) is not None)
    marks = trace.annotations.take(is_mark)
    if not len(marks):
        return None
    tid = int(np.bincount(marks.tid).argmax())
    starts = np.unique(marks.start_ns[marks.tid == tid])
    return (starts, tid) if len(starts) > 1 else None
