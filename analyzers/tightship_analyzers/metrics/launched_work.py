"""What the device did for ranges of the host: events whose launch began within a range, on the range's thread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightship_analyzers.trace.columns import Int32s, Int64s
from tightship_analyzers.trace.model import Trace


@dataclass(frozen=True, slots=True, eq=False)
class LaunchedWork:
    """Linked device events in order of the thread and start of their launch."""

    event: Int64s
    """(linked,) rows in `Trace.device_events`."""
    dur_before_ns: Int64s
    """(linked + 1,) durations of all events before each place."""
    _launched_ns: dict[int, Int64s]
    _first: dict[int, int]

    @classmethod
    def of(cls, trace: Trace) -> LaunchedWork:
        """Sort the events of a trace."""
        linked = np.flatnonzero(trace.device_events.launch >= 0)
        launch = trace.device_events.launch[linked]
        tid, launched = trace.launches.tid[launch], trace.launches.start_ns[launch]
        order = np.lexsort((launched, tid))
        event, tid, launched = linked[order], tid[order], launched[order]
        threads, first, counts = np.unique(tid, return_index=True, return_counts=True)
        places = list(zip(threads.tolist(), first.tolist(), counts.tolist(), strict=True))
        return cls(
            event=event,
            dur_before_ns=np.append(0, np.cumsum(trace.device_events.dur_ns[event])),
            _launched_ns={thread: launched[start : start + count] for thread, start, count in places},
            _first={thread: start for thread, start, _ in places},
        )

    def under(self, tid: Int32s, start_ns: Int64s, end_ns: Int64s) -> tuple[Int64s, Int64s]:
        """For each range [start, end) of a thread: the places in `event` [first, stop) that were launched in it."""
        first, stop = np.zeros(len(tid), dtype=np.int64), np.zeros(len(tid), dtype=np.int64)
        for thread, launched in self._launched_ns.items():
            rows = np.flatnonzero(tid == thread)
            first[rows] = self._first[thread] + np.searchsorted(launched, start_ns[rows], side="left")
            stop[rows] = self._first[thread] + np.searchsorted(launched, end_ns[rows], side="left")
        return first, np.maximum(stop, first)

    def device_ns(self, tid: Int32s, start_ns: Int64s, end_ns: Int64s) -> Int64s:
        """For each range [start, end) of a thread: the durations of what was launched in it, summed."""
        first, stop = self.under(tid, start_ns, end_ns)
        return np.asarray(self.dur_before_ns[stop] - self.dur_before_ns[first], dtype=np.int64)
