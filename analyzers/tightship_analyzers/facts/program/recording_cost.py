"""Where in the steps recording may have cost time.

[Note: recording costs per event] What the profiler does while the job runs, it does when an operator or a Python call
begins or ends: it takes the time, and with shapes and stacks what the call was given
(torch/csrc/profiler/collection.cpp and orchestration/python_tracer.cpp; what else it does waits until the recording
has stopped). Besides, its records take memory that the allocator would have used again, which lengthens operators
that allocate, and caches, which lengthens all. An operator costs more than a Python call, and by how much is not
known. But whatever the mixture: the share of the added time that falls into some part of the steps lies between the
smallest and the largest of the shares that this part has of all operators, of all Python calls, of the time in
operators, and of the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.facts.program.work_threads import WorkThreads
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.trace.columns import Table
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Frames, HostOps, Int64s


@dataclass(frozen=True, slots=True, eq=False)
class RecordingCost:
    """When something was recorded on the threads that issue the work; see [Note: recording costs per event]."""

    needs: ClassVar[Needs] = (Steps, WorkThreads)

    recorded_ns: tuple[Int64s, ...]
    """Starts and ends of operators, and of Python calls: within whole steps; a kind of which there are none is left
    out."""
    working: Intervals
    """Time in operators, within whole steps."""
    window_ns: int

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Only where the CPU is the device: recording does not lengthen a kernel, and may lengthen a gap or not."""
        if facts.trace.device_kind != "cpu":
            return NotApplicable("needs a job that computes on the CPU")
        steps, threads, trace = facts[Steps], facts[WorkThreads], facts.trace
        ops = trace.host_ops.take(threads.among(trace.host_ops.tid))
        frames = trace.frames.take(threads.among(trace.frames.tid))
        # Frames that a first recording lent cost this one nothing.
        frames = frames.take(frames.python_id >= 0)
        moments = tuple(_within(steps, table) for table in (ops, frames))
        working = Intervals.of_table(ops).clip(steps.start_ns, steps.end_ns)
        return cls(tuple(kind for kind in moments if len(kind)), working, steps.window_ns)

    def shares(self, part: Intervals) -> tuple[float, float]:
        """The least and the largest share of the added time that may lie in this part of the steps."""
        found = [part.measure_ns / self.window_ns]
        found += [float(part.contains(kind).mean()) for kind in self.recorded_ns]
        if len(self.working):
            found.append((part & self.working).measure_ns / self.working.measure_ns)
        return min(found), min(1.0, max(found))


def _within(steps: Steps, table: HostOps | Frames) -> Int64s:
    moments = _moments(table)
    kept: Int64s = moments[(moments >= steps.start_ns) & (moments < steps.end_ns)]
    return kept


def _moments(table: Table) -> Int64s:
    """Starts and the last moments."""
    return np.concatenate((table.start_ns, np.maximum(table.end_ns - 1, table.start_ns)))
