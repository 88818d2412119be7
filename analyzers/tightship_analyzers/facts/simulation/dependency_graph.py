"""What in the trace had to wait for what, and whether running that again gives the measured steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.activity.profiler_pauses import ProfilerPauses
from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.window.recording import Recording
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.graph.build import build
from tightship_analyzers.graph.edits import Edits, Float64s
from tightship_analyzers.graph.model import Graph
from tightship_analyzers.graph.simulate import Run, measured, simulate
from tightship_analyzers.graph.threads import calling_thread
from tightship_analyzers.trace.columns import Int64s
from tightship_analyzers.trace.model import Trace
from tightship_platform.units import format_frac, format_ns

MAX_ERROR_FRAC = 0.02
"""Beyond this the simulation is not the program that was recorded, and no saving is taken from it."""
MAX_ANCHORED_FRAC = 0.02
"""Share of the device time in the window without a launch in the trace; it does not move, whatever is edited."""


@dataclass(frozen=True, slots=True, eq=False)
class DependencyGraph:
    """The graph of the window's steps (without steps: of the window as one step), and its unchanged run."""

    needs: ClassVar[Needs] = (Window, ProfilerPauses)

    graph: Graph
    recorded: Run
    unchanged: Run
    profiler: Edits
    """Without the host time that recording took by itself."""
    unprofiled: Run
    """With these edits only: what savings are counted from."""
    anchored_frac: float
    """Share of the window's device time whose launch the trace does not hold."""

    @property
    def steps_ns(self) -> Int64s:
        """(steps,) measured, on the host."""
        return self.recorded.steps_ns

    @property
    def error_frac(self) -> Float64s:
        """(steps,) how far the unchanged simulation misses each measured step, on the host or with the device's work
        of the step, whichever is worse; as a share of the step."""
        host = np.abs(self.unchanged.steps_ns - self.recorded.steps_ns)
        whole = np.abs(self.unchanged.finished_steps_ns - self.recorded.finished_steps_ns)
        return np.asarray(np.maximum(host, whole) / np.maximum(self.steps_ns, 1), dtype=np.float64)

    @property
    def mean_error_frac(self) -> float:
        """The same over all steps, each by its length."""
        return float((self.error_frac * self.steps_ns).sum() / max(1, int(self.steps_ns.sum())))

    @property
    def drift_frac(self) -> float:
        """By how much the unchanged simulation starts a device event too early, as a share of its step and against the
        begin of the step on the host; mean of all. A device that nobody waits for may drift while steps agree."""
        graph, drift = self.graph, 0.0
        first, last = int(graph.due[0]), int(graph.due[-1])
        for step, length in enumerate(self.steps_ns.tolist()):
            nodes = graph.by_launch[graph.due[step] : graph.due[step + 1]]
            late = self.recorded.time_ns[nodes] - self.unchanged.time_ns[nodes]
            shift = self.recorded.bounds_ns[step] - self.unchanged.bounds_ns[step]
            drift += float(np.abs(late - shift).sum()) / max(1, length)
        return drift / max(1, last - first)

    @property
    def is_unlike(self) -> bool:
        """The unchanged simulation is not the program that was recorded."""
        return max(self.mean_error_frac, self.drift_frac) > MAX_ERROR_FRAC

    @property
    def distrust(self) -> str | None:
        """Why no saving is taken from it; None where it reproduces the recording."""
        lost = f"{format_ns(self.unexplained_ns)} of waiting has no cause in the trace"
        if self.mean_error_frac > MAX_ERROR_FRAC:
            return f"the simulation misses the measured steps by {format_frac(self.mean_error_frac)}: {lost}"
        if self.drift_frac > MAX_ERROR_FRAC:
            return (
                f"the simulated device runs {format_frac(self.drift_frac)} of a step ahead of the recorded one: {lost}"
            )
        if self.anchored_frac > MAX_ANCHORED_FRAC:
            return f"the trace lacks the launch of {format_frac(self.anchored_frac)} of the device's work"
        if len(self.graph.by_launch) and self.graph.due[-1] == self.graph.due[0]:
            return "all of the device's work was launched before what is judged, so that no step ends with it"
        return None

    @property
    def unexplained_ns(self) -> int:
        """Waiting within the steps for which the trace shows no cause, all streams and threads together."""
        graph = self.graph
        at = graph.time_ns[graph.dst]
        inside = (at >= self.recorded.bounds_ns[0]) & (at < self.recorded.finished_ns[-1])
        return int(graph.excess_ns[inside].sum())

    def saved_ns(self, edits: Edits) -> Int64s:
        """(steps,) how much shorter each step is with the edits, from finish to finish; negative where longer. What
        recording took by itself is gone before and after."""
        return self.unprofiled.finished_steps_ns - simulate(self.graph, edits | self.profiler).finished_steps_ns

    @property
    def profiling_ns(self) -> int:
        """By how much the recording made the window longer, as far as it is known."""
        return int((self.unchanged.finished_steps_ns - self.unprofiled.finished_steps_ns).sum())

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """Needs operators, runtime calls or device events."""
        window = facts[Window]
        trace, steps = facts.trace, facts.find(Steps)
        tid = steps.tid if steps else calling_thread(trace)
        graph = build(trace, _host_bounds_ns(trace, window), tid, facts[Recording].unseen_until_ns)
        events = trace.device_events
        inside = events.take((events.start_ns >= window.start_ns) & (events.start_ns < window.end_ns))
        anchored = int(inside.dur_ns[inside.launch < 0].sum())
        profiler = Edits()
        for tid, spans in facts[ProfilerPauses].by_thread.items():
            profiler |= Edits.without_host(tid, spans)
        unchanged = simulate(graph)
        return cls(
            graph=graph,
            recorded=measured(graph),
            unchanged=unchanged,
            profiler=profiler,
            unprofiled=simulate(graph, profiler) if profiler.host else unchanged,
            anchored_frac=anchored / max(1, int(inside.dur_ns.sum())),
        )


def _host_bounds_ns(trace: Trace, window: Window) -> Int64s:
    """When the thread passes the bounds. A recording without steps ends for it with its last call, not with the device:
    else no work of the device could bring the end forward."""
    if window.of_steps:
        return window.host_bounds_ns
    last_ns = max((int(table.end_ns.max()) for table in (trace.host_ops, trace.launches) if len(table)), default=0)
    if not window.start_ns < last_ns < window.end_ns:
        return window.host_bounds_ns
    return np.array([window.start_ns, last_ns], dtype=np.int64)
