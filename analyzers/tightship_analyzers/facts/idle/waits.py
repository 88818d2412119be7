"""What each gap waited for: the host, which had yet to launch the next work, or the device, which had it already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from tightship_analyzers.trace.columns import Bools, DeviceEvents, Int32s, Int64s, Launches
from tightship_analyzers.trace.intervals import Intervals

LATE_START_NS = 30_000
"""Work that starts within this after its launch call returned was started at once. Later, the device held it back.
Source: HolisticTraceAnalysis, `consecutive_kernel_delay`, which draws the line between two kernels there."""

USUAL_LATENCY_NS = 10_000
"""From the begin of a launch call to the start of its kernel on an empty device, where a trace holds too few cases to
tell. Source: 5 to 10 µs in the traces of A100, H100, B200 and MI300X that are our references."""
NEVER = np.iinfo(np.int64).max
MIN_CASES = 10
FAST_PERCENT = 25
"""Of the cases in which the device was empty when the call began, those that started fastest met nothing else."""


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Gaps and the work that ends each. A gap is the host's until `host_until_ns`, the device's from there on.

    [Note: whose gap] The work that ends a gap was launched by a call [L, E) of some thread. If L is after the device
    became idle, the device waited for the host. So it did when the work started no later after L than work usually
    does on an empty device: launching takes its time, and the call came too late to hide it. Else the work was queued
    in time, and what it waited for happened on the device (the start of a dependent kernel, an event of another stream,
    another device). If the host came late, but the work started only LATE_START_NS after E, then from E on the device
    waited.

    Work whose launch the trace does not hold was launched before what follows it in its stream. If that was launched
    before the device was idle, it was queued in time. Other such work is taken for queued when the gap is short, else
    for the host's: as a rule that is work of a captured graph, whose kernels follow one another closely.
    """

    start_ns: Int64s
    end_ns: Int64s
    host_until_ns: Int64s
    """(gaps,) `start_ns` where the host was not waited for at all."""
    event: Int64s
    """(gaps,) row of the event that ends the gap; -1 where none follows."""
    launched_ns: Int64s
    """(gaps,) begin of the call that launched it; -1 where it is unknown."""
    tid: Int32s
    """(gaps,) thread of that call; the training thread where it is unknown."""

    @classmethod
    def of(
        cls, gaps: Intervals, events: DeviceEvents, launches: Launches, main_tid: int, *, blame_host: bool = True
    ) -> Self:
        """What each of `gaps` waited for.

        :param events: by start; those that end a wait.
        :param blame_host: where the launch is unknown, or nothing follows, and the gap is long, it is the host's.
        """
        start, end = gaps.start_ns, gaps.end_ns
        event = np.searchsorted(events.start_ns, end, side="left")
        event = np.where(event < len(events), event, -1)
        launch = np.append(events.launch, -1)[event]
        known = launch >= 0
        began = np.append(launches.start_ns, 0)[launch]
        returned = np.append(launches.end_ns, 0)[launch]
        started = np.append(events.start_ns, 0)[event]
        latency_ns = _latency(started - began, known & (began > start) & (began < end) & (started == end))
        came_late = known & ((began > start) | (started - began <= latency_ns))
        held_back = came_late & (started - returned > LATE_START_NS)
        queued = ~known & (event >= 0) & (np.append(_launched_by(events, launches), NEVER)[event] <= start)
        is_host = came_late | (~known & ~queued & blame_host & ((event < 0) | (end - start >= LATE_START_NS)))
        until = np.where(is_host, np.where(held_back, np.clip(returned, start, end), end), start)
        return cls(
            start_ns=start,
            end_ns=end,
            host_until_ns=until,
            event=event,
            launched_ns=np.where(known, began, -1),
            tid=np.where(known, np.append(launches.tid, 0)[launch], main_tid).astype(np.int32),
        )

    @classmethod
    def of_host(cls, gaps: Intervals, tid: int) -> Self:
        """On a CPU the host is the device: every gap is its own, and ends with its next operator."""
        nothing = np.full(len(gaps), -1, dtype=np.int64)
        return cls(
            gaps.start_ns, gaps.end_ns, gaps.end_ns, nothing, gaps.end_ns, np.full(len(gaps), tid, dtype=np.int32)
        )

    def take(self, rows: Bools | Int64s) -> Waits:
        """Only these gaps."""
        return Waits(
            self.start_ns[rows],
            self.end_ns[rows],
            self.host_until_ns[rows],
            self.event[rows],
            self.launched_ns[rows],
            self.tid[rows],
        )

    @property
    def host(self) -> Intervals:
        """The host's parts."""
        return Intervals.of(self.start_ns, self.host_until_ns)

    @property
    def device(self) -> Intervals:
        """The device's parts."""
        return Intervals.of(self.host_until_ns, self.end_ns)


def _launched_by(events: DeviceEvents, launches: Launches) -> Int64s:
    """(events,) when each had been launched at the latest: the begin of the call that launched it, or the next one of
    its stream whose call is known; NEVER where none is."""
    began = np.where(events.launch >= 0, np.append(launches.start_ns, 0)[events.launch], NEVER)
    order = np.lexsort((events.start_ns, events.stream, events.device))
    last = np.ones(len(order), dtype=np.bool_)
    last[:-1] = (np.diff(events.stream[order]) != 0) | (np.diff(events.device[order]) != 0)
    # From the back, the nearest known call; a stream's last event shuts off those of the streams after it.
    backwards, recorded = order[::-1], (events.launch[order[::-1]] >= 0) | last[::-1]
    nearest = np.maximum.accumulate(np.where(recorded, np.arange(len(order)), 0))
    latest = np.empty(len(order), dtype=np.int64)
    latest[backwards] = began[backwards[nearest]]
    return latest


def _latency(ns: Int64s, is_case: Bools) -> int:
    """How long work takes from launch to start when nothing is in its way."""
    cases = ns[is_case]
    return int(np.percentile(cases, FAST_PERCENT)) if len(cases) >= MIN_CASES else USUAL_LATENCY_NS
