"""How many operations waited in each stream's queue, and for how long the queue was full."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from tightship_analyzers.metrics.device_events import NO_DEVICE_EVENTS, NO_LAUNCHES, by_stream
from tightship_analyzers.trace.columns import Int64s
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.not_applicable import NotApplicable

FULL_QUEUE = 1024
"""Operations that CUDA's launch queue takes before a launch blocks the host.
Source: HolisticTraceAnalysis, documentation of `get_time_spent_blocked_on_full_queue`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSummary:
    """The lengths at the moments of change, each moment counted once."""

    changes: int
    mean: float
    std: float
    """Of the sample; 0 with fewer than two changes."""
    min: int
    p25: float
    p50: float
    p75: float
    max: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamQueue:
    """The queue of one stream as a step function: `length[i]` holds from `time_ns[i]` to `time_ns[i + 1]`."""

    device: int
    stream: int
    time_ns: Int64s
    """(changes,) absolute, ascending; a moment may stand there several times."""
    length: Int64s
    """(changes,) operations that were launched and have not begun."""
    unlinked: int
    """Events of the stream that are left out, because the trace does not hold their launch."""

    @property
    def summary(self) -> QueueSummary:
        """Statistics of the changes."""
        quarter, half, rest = np.quantile(self.length, (0.25, 0.5, 0.75)).tolist()
        return QueueSummary(
            changes=len(self.length),
            mean=float(self.length.mean()),
            std=float(self.length.std(ddof=1)) if len(self.length) > 1 else 0.0,
            min=int(self.length.min()),
            p25=quarter,
            p50=half,
            p75=rest,
            max=int(self.length.max()),
        )

    @property
    def area_ns(self) -> int:
        """Length times time, summed: divided by the time it is the mean length that an observer would see."""
        return int((self.length[:-1] * np.diff(self.time_ns)).sum())

    def full_ns(self, full: int = FULL_QUEUE) -> int:
        """How long at least `full` operations waited: launches meanwhile block the host."""
        return int(np.diff(self.time_ns)[self.length[:-1] >= full].sum())


def queue_length(trace: Trace, *, calls: Collection[str] | None = None) -> tuple[StreamQueue, ...] | NotApplicable:
    """The queue of every stream that anything was launched into, in order of device and stream.

    The length grows when a call that launches begins, and falls when the device begins what was launched. At one and
    the same moment launches count first, so that the length is never negative. A call that launches several events (a
    graph) is one operation in each of their streams. `calls` restricts it to launches by runtime calls of these names.
    """
    events = trace.device_events
    if not len(events):
        return NO_DEVICE_EVENTS
    linked = events.launch >= 0
    counted = linked
    if calls is not None:
        wanted = trace.names.mask(trace.launches.name, lambda text: text in calls)
        counted = linked & np.append(wanted, False)[events.launch]
    if not counted.any():
        return NO_LAUNCHES
    result = []
    for device, stream, rows in by_stream(events):
        chosen = rows[counted[rows]]
        if not len(chosen):
            continue
        _, first = np.unique(events.launch[chosen], return_index=True)
        chosen = chosen[np.sort(first)]
        launched = trace.launches.start_ns[events.launch[chosen]]
        # Clocks of host and device differ a little: nothing begins before it was launched.
        begun = np.maximum(events.start_ns[chosen], launched)
        time = np.append(launched, begun)
        change = np.append(np.ones(len(chosen), dtype=np.int64), np.full(len(chosen), -1, dtype=np.int64))
        order = np.argsort(time, kind="stable")
        result.append(
            StreamQueue(
                device=device,
                stream=stream,
                time_ns=time[order],
                length=np.cumsum(change[order]),
                unlinked=int((~linked[rows]).sum()),
            )
        )
    return tuple(result)
