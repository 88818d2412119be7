"""What every analysis of the device's work asks first."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tightship_analyzers.trace.columns import DeviceEvents, Int64s
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.not_applicable import NotApplicable

NO_DEVICE_EVENTS = NotApplicable("needs device events (kernels, copies, sets); the trace holds none")
NO_LAUNCHES = NotApplicable("needs the runtime calls that launch the device's work; the trace holds none of them")


def by_stream(events: DeviceEvents) -> Iterator[tuple[int, int, Int64s]]:
    """(device, stream, rows of its events in order of start) of each stream, in order of device and stream."""
    order = np.lexsort((events.stream, events.device))
    device, stream = events.device[order], events.stream[order]
    changes = np.flatnonzero((np.diff(device) != 0) | (np.diff(stream) != 0)) + 1
    for rows in np.split(order, changes):
        if len(rows):
            yield int(events.device[rows[0]]), int(events.stream[rows[0]]), rows


def tick_ns(trace: Trace) -> int:
    """The resolution of the trace's clock: 1000 where all device times are whole microseconds, else 1."""
    events = trace.device_events
    return 1 if (events.start_ns % 1000).any() or (events.dur_ns % 1000).any() else 1000
