"""The steps of a trace: how long each took, and how much of it the device was busy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tightship_analyzers.metrics.step_filter import marked_steps
from tightship_analyzers.trace.columns import Int64s
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Trace
from tightship_analyzers.trace.step_marks import OPTIMIZER, PROFILER
from tightship_platform.results.not_applicable import NotApplicable


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One step."""

    name: str
    """As it is marked, or `step 1`, `step 2` … where the bounds were given."""
    start_ns: int
    end_ns: int
    device_busy_ns: int
    """Of the step's time, the device did anything."""
    launched: int
    """Device events that were launched within the step."""
    device_work_ns: int
    """Their durations, whenever they ran; what runs at the same time counts each."""

    @property
    def duration_ns(self) -> int:
        """From start to end."""
        return self.end_ns - self.start_ns


def steps(
    trace: Trace, *, bounds_ns: Int64s | None = None, host_bounds_ns: Int64s | None = None
) -> tuple[StepTime, ...] | NotApplicable:
    """The marked steps (`ProfilerStep#`) in order of start, or those between `bounds_ns`, which are ascending.

    :param host_bounds_ns: when the host passed the bounds, where the device runs behind it: what it launched counts.

    Of marks that are one step (see `marked_steps`) the union counts.
    """
    if bounds_ns is not None:
        ends = zip(bounds_ns[:-1].tolist(), bounds_ns[1:].tolist(), strict=True)
        spans = [(f"step {number}", start, end) for number, (start, end) in enumerate(ends, 1)]
    else:
        spans = sorted(marked_steps(trace), key=lambda span: span[1:])
    if not spans:
        return NotApplicable(f"needs marked steps ({PROFILER}…) or bounds of steps; the trace marks none")
    host = bounds_ns if host_bounds_ns is None else host_bounds_ns
    calls = [(start, end) for _, start, end in spans] if host is None else pairwise(host.tolist())
    return tuple(_measured(trace, spans, list(calls)))


def step_count(trace: Trace) -> int | None:
    """How many steps the trace holds: marked ones, else steps of optimizers; None where it tells neither."""
    if marked := marked_steps(trace):
        return len(marked)
    optimizers = trace.annotations_named(OPTIMIZER)
    return int(np.bincount(optimizers.name).max()) if len(optimizers) else None


def _measured(trace: Trace, spans: Sequence[tuple[str, int, int]], calls: Sequence[tuple[int, int]]) -> list[StepTime]:
    events = trace.device_events
    start = np.array([span[1] for span in spans], dtype=np.int64)
    end = np.array([span[2] for span in spans], dtype=np.int64)
    busy = Intervals.of_table(events).overlap_ns(start, end)
    linked = events.launch >= 0
    launched = trace.launches.start_ns[events.launch[linked]]
    order = np.argsort(launched, kind="stable")
    launched, dur_before = launched[order], np.append(0, np.cumsum(events.dur_ns[linked][order]))
    first, stop = np.searchsorted(launched, np.array(calls, dtype=np.int64).T)
    return [
        StepTime(
            name=name,
            start_ns=begin,
            end_ns=until,
            device_busy_ns=int(busy[row]),
            launched=int(stop[row] - first[row]),
            device_work_ns=int(dur_before[stop[row]] - dur_before[first[row]]),
        )
        for row, (name, begin, until) in enumerate(spans)
    ]
