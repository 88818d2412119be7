"""Why the device idled and why communication was not hidden: every nanosecond with its cause and its place.

    idle = facts[IdleCauses]
    idle.window.by_cause()                       # {Cause.INPUT: 4_725_700_000, …}
    idle.window.rows()[0]                        # the costliest cause and place
    idle.window.spans(Cause.HOST_SYNC)           # when, as an `Intervals`
    idle.of_step(0).as_rows()                    # for JSON
    idle.of_kernel_span(kept).as_rows()          # sums to the idle time of `temporal_breakdown(kept)`

docs/idle.md defines the causes and says why they are distinguished in this order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.activity.cause import Cause
from tightship_analyzers.facts.activity.device_busy import DeviceBusy, DeviceGaps
from tightship_analyzers.facts.activity.host_activity import TrainingThread
from tightship_analyzers.facts.activity.profiler_pauses import ProfilerPauses
from tightship_analyzers.facts.idle.attributed import NOWHERE, Attributed, CauseRow, Piece, Place, joined
from tightship_analyzers.facts.idle.attribution import Attribution
from tightship_analyzers.facts.idle.waits import Waits
from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.facts.program.work_threads import WorkThreads
from tightship_analyzers.facts.window.recording import LATE_NS, Recording
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import DeviceEvents, EventKind, Int64s, Trace

__all__ = ["Attributed", "Cause", "CauseRow", "ExposedCommunication", "IdleCauses", "Place"]


@dataclass(frozen=True, slots=True, eq=False)
class HostAttribution:
    """What both facts need to know of the host; learnt once."""

    needs: ClassVar[Needs] = (Window, TrainingThread, WorkThreads, ProfilerPauses)

    attribution: Attribution

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """Needs what a window needs."""
        window = facts[Window]
        main, work_tids = facts[TrainingThread].thread, facts[WorkThreads].tids
        profiler = facts[ProfilerPauses]
        return cls(Attribution(facts.trace, main_tid=window.tid, main=main, work_tids=work_tids, profiler=profiler))


@dataclass(frozen=True, slots=True, eq=False)
class IdleCauses:
    """Idle time of the device, all streams together."""

    needs: ClassVar[Needs] = (DeviceGaps, HostAttribution, Window)

    everywhere: Attributed
    """From the first to the last moment of the window or of the device's work, whichever reaches further."""
    window: Attributed
    """Within the window: exactly the time of `DeviceGaps`."""
    steps: Steps | None

    def of_step(self, row: int) -> Attributed:
        """Idle time of one step (0-based row of `Steps`), exactly.

        :raises IndexError: there is no such step.
        """
        return _of_step(self.window, self.steps, row)

    def of_kernel_span(self, counted: Trace) -> Attributed:
        """Idle time as `temporal_breakdown(counted)` counts it, exactly: between the first and the last of its device
        events, where `counted` is the trace or a part of it (without its last step).

        What the device did for work that is not counted is idle time here; its cause is WINDOW_EDGE.
        """
        events = counted.device_events
        if not len(events):
            return joined([], (NOWHERE,))
        gaps = Intervals.of_table(events).gaps(int(events.start_ns[0]), int(events.end_ns.max()))
        known = self.everywhere.within(gaps)
        rest = gaps - self.everywhere.spans()
        places = known.places if NOWHERE in known.places else (*known.places, NOWHERE)
        return joined(
            [
                Piece(known.start_ns, known.end_ns, known.cause, known.place),
                Piece(
                    rest.start_ns,
                    rest.end_ns,
                    np.full(len(rest), Cause.WINDOW_EDGE, dtype=np.int8),
                    np.full(len(rest), places.index(NOWHERE), dtype=np.int32),
                ),
            ],
            places,
        )

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """Needs operators or device events; says more with runtime calls, most with stacks."""
        gaps, host = facts[DeviceGaps], facts[HostAttribution]
        trace, window, steps = facts.trace, facts[Window], facts.find(Steps)
        nothing = Intervals.none()
        if trace.device_kind == "cpu":
            waits = Waits.of_host(gaps.spans, window.tid)
            found = host.attribution.of(waits, queued=Cause.DEVICE_DEPENDENCY, queued_row=waits.event, edges=nothing)
            return cls(found, found, steps)
        events = trace.device_events
        first_ns, last_ns = int(events.start_ns[0]), int(events.end_ns.max())
        start_ns, end_ns = min(window.start_ns, first_ns), max(window.end_ns, last_ns)
        waits = Waits.of(Intervals.of_table(events).gaps(start_ns, end_ns), events, trace.launches, window.tid)
        everywhere = host.attribution.of(
            waits,
            queued=Cause.DEVICE_DEPENDENCY,
            queued_row=waits.event,
            edges=Intervals.one(start_ns, _judged_from(facts, first_ns)) | Intervals.one(last_ns, end_ns),
            held_ns=LATE_NS,
        )
        return cls(everywhere, everywhere.within(gaps.spans), steps)


@dataclass(frozen=True, slots=True, eq=False)
class ExposedCommunication:
    """Time in which the device communicated and computed nothing, within the window.

    [Note: exposed communication] What was missing is the next computation. If that was queued already, it had to wait
    for the collective, and the place is that of the collective: COLLECTIVE_WAIT. If the host had yet to launch it, the
    host's doing is the cause, as for idle time: the collective lies bare because the device would have idled.
    """

    needs: ClassVar[Needs] = (DeviceBusy, HostAttribution, Window)

    window: Attributed
    """Exactly `communication - compute` of `DeviceBusy`."""
    steps: Steps | None

    def of_step(self, row: int) -> Attributed:
        """That of one step (0-based row of `Steps`), exactly.

        :raises IndexError: there is no such step.
        """
        return _of_step(self.window, self.steps, row)

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Needs communication on the device."""
        busy, host = facts[DeviceBusy], facts[HostAttribution]
        if not len(busy.communication):
            return NotApplicable("needs communication between ranks on the device; the window holds none")
        trace, window = facts.trace, facts[Window]
        is_shared = trace.device_events.kind == EventKind.COLLECTIVE
        exposed = busy.communication - busy.compute
        computing = trace.device_events.take(~is_shared)
        waits = Waits.of(exposed, computing, trace.launches, window.tid, blame_host=False)
        found = host.attribution.of(
            waits,
            queued=Cause.COLLECTIVE_WAIT,
            queued_row=_running(trace.device_events, np.flatnonzero(is_shared), exposed),
            edges=Intervals.none(),
        )
        return cls(found, facts.find(Steps))


def _judged_from(facts: Facts, first_ns: int) -> int:
    """From when on idle time is the program's. Before the first work of a recording the device may have run what is not
    in the file. Where the program marks a step, and the first work of all began as soon as it was launched, the device
    had nothing left to do, and what the host did in the step until then kept it waiting."""
    window, events = facts[Window], facts.trace.device_events
    began_at_once = facts[Recording].unseen_until_ns == facts.trace.start_ns and events.launch[0] >= 0
    return min(first_ns, window.start_ns) if window.of_steps and began_at_once else first_ns


def _of_step(time: Attributed, steps: Steps | None, row: int) -> Attributed:
    if steps is None or not 0 <= row < steps.count:
        raise IndexError(f"no step {row}")
    return time.within(Intervals.one(int(steps.bounds_ns[row]), int(steps.bounds_ns[row + 1])))


def _running(events: DeviceEvents, rows: Int64s, time: Intervals) -> Int64s:
    """(intervals,) of these events the last one that began before the end of each interval."""
    return rows[np.searchsorted(events.start_ns[rows], time.end_ns, side="left") - 1]
