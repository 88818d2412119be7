"""The device's side of a trace: streams, and who is last in one at a given moment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightship_analyzers.trace.columns import Bools, Int64s
from tightship_analyzers.trace.model import Trace

MAX_STREAMS = 256
"""A call is checked against so many streams; jobs have a dozen."""
CLOCK_NS = 2_000
"""By as much an effect may seem to come before its cause: old traces round start and duration to whole microseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """The events of one stream, in the order of their launch."""

    device: int
    number: int
    rows: Int64s
    """In `Trace.device_events`."""
    launched_ns: Int64s
    reached_ns: Int64s
    """When this event and all before it had ended."""

    def last(self, launched_before_ns: Int64s, ended_by_ns: Int64s | None = None) -> Int64s:
        """For each moment: the row of the last event that was launched before it, and that had ended (with all before
        it) by the other moment; -1 for none."""
        place = np.searchsorted(self.launched_ns, launched_before_ns, side="left")
        if ended_by_ns is not None:
            place = np.minimum(place, np.searchsorted(self.reached_ns, ended_by_ns, side="right"))
        return np.where(place > 0, self.rows[np.maximum(place - 1, 0)], -1)

    def first_from(self, launched_ns: Int64s) -> Int64s:
        """For each moment: the row of the first event launched at it or later; -1 for none."""
        place = np.searchsorted(self.launched_ns, launched_ns, side="left")
        inside = place < len(self.rows)
        return np.where(inside, self.rows[np.minimum(place, len(self.rows) - 1)], -1)


@dataclass(frozen=True, slots=True, eq=False)
class Streams:
    """All streams of a trace."""

    launched_ns: Int64s
    """(device events,) start of the call that launched each; its own start where the trace does not hold the call."""
    linked: Bools
    """(device events,) the trace holds the call."""
    index: Int64s
    """(device events,) place in `all`."""
    all: tuple[Stream, ...]
    before: Int64s
    """(device events,) row of the event of the same stream that ended last before this one started, or of the one that
    still ran; -1 for the first."""
    _by_number: dict[tuple[int, int], Stream]
    """(device, number); as device -1 the first of that number."""

    @classmethod
    def of(cls, trace: Trace) -> Streams:
        """Group the device events of a trace."""
        events = trace.device_events
        linked = events.launch >= 0
        launched = events.start_ns.copy()
        launched[linked] = trace.launches.start_ns[events.launch[linked]]
        order = np.lexsort((np.arange(len(events)), events.stream, events.device))
        device, number = events.device[order], events.stream[order]
        changes = np.flatnonzero((np.diff(device) != 0) | (np.diff(number) != 0)) + 1
        index, before = np.zeros(len(events), dtype=np.int64), np.full(len(events), -1, dtype=np.int64)
        streams = []
        for place, rows in enumerate(np.split(order, changes) if len(order) else []):
            by_launch = rows[np.argsort(launched[rows], kind="stable")]
            index[rows] = place
            reached = np.maximum.accumulate(events.end_ns[rows])
            # Where a new latest end is reached; all later ones come after the last such event.
            is_latest = np.append(True, reached[1:] > reached[:-1])
            latest = np.maximum.accumulate(np.where(is_latest, np.arange(len(rows)), 0))
            before[rows[1:]] = rows[latest[:-1]]
            streams.append(
                Stream(
                    device=int(events.device[rows[0]]),
                    number=int(events.stream[rows[0]]),
                    rows=by_launch,
                    launched_ns=launched[by_launch],
                    reached_ns=np.maximum.accumulate(events.end_ns[by_launch]),
                )
            )
        by_number = {(device, stream.number): stream for stream in streams[::-1] for device in (-1, stream.device)}
        return cls(launched, linked, index, tuple(streams), before, by_number)

    @property
    def busiest(self) -> list[tuple[int, Stream]]:
        """(place in `all`, stream) of those with most events, MAX_STREAMS at most."""
        return sorted(enumerate(self.all), key=lambda one: -len(one[1].rows))[:MAX_STREAMS]

    def find(self, device: int, number: int) -> Stream | None:
        """The stream of this number; where the trace does not name the device (-1), of any."""
        known = self._by_number.get((device, number))
        return known if known or device >= 0 else self._by_number.get((-1, number))
