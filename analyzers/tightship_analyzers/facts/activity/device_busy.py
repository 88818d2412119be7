"""When the device worked, within the window.

[Note: the CPU as device] A trace without device events is of a job that computes on the CPU. Its device timeline is
made of the operators of the training and backward threads themselves. What runs inside the data loader, a save, a
compiler or a collective that blocks is no training work, whatever it computes, and is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from tightship_analyzers.facts.activity.host_activity import TrainingThread
from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.program.work_threads import WorkThreads
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import EventKind


@dataclass(frozen=True, slots=True, eq=False)
class DeviceBusy:
    """The device timeline. `compute` and `communication` may overlap."""

    needs: ClassVar[Needs] = (Window,)

    compute: Intervals
    """Kernels, copies and sets; on a CPU the operators."""
    communication: Intervals
    """Collectives."""

    @property
    def spans(self) -> Intervals:
        """Anything at all."""
        return self.compute | self.communication

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """From device events where there are any."""
        window = facts[Window]
        trace = facts.trace
        if trace.device_kind == "gpu":
            events = trace.device_events
            shared = events.kind == EventKind.COLLECTIVE
            return cls(
                compute=Intervals.of_table(events.take(~shared)).clip(window.start_ns, window.end_ns),
                communication=Intervals.of_table(events.take(shared)).clip(window.start_ns, window.end_ns),
            )
        ops = trace.host_ops.take(facts[WorkThreads].among(trace.host_ops.tid))
        compute = Intervals.of_table(ops).clip(window.start_ns, window.end_ns)
        return cls(compute=compute - facts[TrainingThread].elsewhere, communication=Intervals.none())


@dataclass(frozen=True, slots=True, eq=False)
class DeviceGaps:
    """When the device did nothing, within the window.

    [Note: after the last work] Whoever waits for the last work of a recording keeps nothing waiting: the result is
    read, the program or the profiler ends, and nothing is launched that could have been launched earlier. What such a
    wait costs, if it does, the file does not show.
    """

    needs: ClassVar[Needs] = (DeviceBusy, Window)

    spans: Intervals
    followed: Intervals
    """Those that work of the device follows, in the window or after it."""

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """What is left of the window."""
        busy, window, events = facts[DeviceBusy], facts[Window], facts.trace.device_events
        spans = busy.spans.gaps(window.start_ns, window.end_ns)
        last_ns = int(events.start_ns[-1]) if len(events) else window.end_ns
        return cls(spans, spans.clip(window.start_ns, last_ns))
