"""Launch statistics: what calls into the runtime cost the host, and how long their work waited."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from tightship_analyzers.metrics.device_events import NO_DEVICE_EVENTS, NO_LAUNCHES
from tightship_analyzers.metrics.duration_stats import DurationStats
from tightship_analyzers.trace.columns import Int32s, Int64s
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.not_applicable import NotApplicable

SHORT_NS = 10_000
"""A kernel that takes no longer is short: about what launching it costs the host."""
LONG_CALL_NS = 50_000
LONG_DELAY_NS = 100_000
"""Outliers of the call's duration and of the delay. Source of both: HolisticTraceAnalysis,
`get_cuda_kernel_launch_stats` (`runtime_cutoff`, `launch_delay_cutoff`)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaunchPairs:
    """Every device event with the call that launched it; one row each, in order of the event's start."""

    event: Int64s
    """Row in `Trace.device_events`."""
    launch: Int64s
    """Row in `Trace.launches`; a call that launched several events stands there several times."""
    call: Int32s
    """Name number of the call."""
    host_ns: Int64s
    """Duration of the call."""
    device_ns: Int64s
    """Duration of the event."""
    delay_ns: Int64s
    """From the end of the call to the start of the event; 0 where the event began earlier."""

    def __len__(self) -> int:
        return len(self.event)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStats:
    """Runtime calls of one name. A call that launches several events (a graph) is one call."""

    call: str
    host: DurationStats
    """The calls."""
    device: DurationStats
    """The events that they launched."""
    delay: DurationStats
    """Of each call, until its first event started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchStats:
    """All launches of a trace; `host`, `device` and `delay` as in `CallStats`."""

    host: DurationStats
    device: DurationStats
    delay: DurationStats
    short_events: int
    """Device events of at most `SHORT_NS`."""
    shorter_than_call: int
    """Calls, no outliers, of which all that they launched took less time than they did."""
    long_calls: int
    """Calls longer than `LONG_CALL_NS`."""
    long_delays: int
    """Delays longer than `LONG_DELAY_NS`."""
    unlinked: int
    """Device events whose launch the trace does not hold; they are in none of the other figures."""
    by_call: tuple[CallStats, ...]
    """One row per name of the call, the most launches first."""


def launch_pairs(trace: Trace, *, calls: Collection[str] | None = None) -> LaunchPairs | NotApplicable:
    """Join device events and their launches; `calls` keeps those by runtime calls of these names."""
    events, launches = trace.device_events, trace.launches
    if not len(events):
        return NO_DEVICE_EVENTS
    event = np.flatnonzero(events.launch >= 0)
    if calls is not None:
        wanted = trace.names.mask(launches.name, lambda text: text in calls)
        event = event[wanted[events.launch[event]]]
    if not len(event):
        return NO_LAUNCHES
    launch = events.launch[event]
    return LaunchPairs(
        event=event,
        launch=launch,
        call=launches.name[launch],
        host_ns=launches.dur_ns[launch],
        device_ns=events.dur_ns[event],
        delay_ns=np.maximum(events.start_ns[event] - launches.end_ns[launch], 0),
    )


def launch_stats(trace: Trace, *, calls: Collection[str] | None = None) -> LaunchStats | NotApplicable:
    """Statistics of all launches, and by the name of the call."""
    pairs = launch_pairs(trace, calls=calls)
    if isinstance(pairs, NotApplicable):
        return pairs
    # In order of the events' starts, so that the first row of a call is that of its first event.
    _, first, call = np.unique(pairs.launch, return_index=True, return_inverse=True)
    host_ns, delay_ns, names = pairs.host_ns[first], pairs.delay_ns[first], pairs.call[first]
    device_ns = np.zeros(len(first), dtype=np.int64)
    np.add.at(device_ns, call, pairs.device_ns)
    by_call = [
        CallStats(
            call=trace.names[number],
            host=DurationStats.of(host_ns[names == number]),
            device=DurationStats.of(pairs.device_ns[pairs.call == number]),
            delay=DurationStats.of(delay_ns[names == number]),
        )
        for number in np.unique(names).tolist()
    ]
    usual = host_ns <= LONG_CALL_NS
    return LaunchStats(
        host=DurationStats.of(host_ns),
        device=DurationStats.of(pairs.device_ns),
        delay=DurationStats.of(delay_ns),
        short_events=int((pairs.device_ns <= SHORT_NS).sum()),
        shorter_than_call=int((usual & (device_ns < host_ns)).sum()),
        long_calls=int((~usual).sum()),
        long_delays=int((delay_ns > LONG_DELAY_NS).sum()),
        unlinked=int((trace.device_events.launch < 0).sum()),
        by_call=tuple(sorted(by_call, key=lambda row: (-row.host.count, row.call))),
    )
