"""How many events of a trace there is memory for."""

from __future__ import annotations

from tightship_analyzers.trace.limits import Limits, TraceError
from tightship_offload.plan.host_limits import read_host_limits
from tightship_platform.units import format_bytes

EVENT_BYTES = 350
"""Memory that an event takes until its trace is judged, at most: measured with 1.8 million operators, launches and
kernels. Reading alone takes 92; a recorded trace of many kinds of events took 180 in all."""
_HELD_BYTES = 60
"""Of these, what events that were read hold at least while more are read."""
LOOK_EVENTS = 2**20
"""Between two looks at the memory that is left: others take of it, too."""


class EventRoom:
    """Asked while a trace is read, before its events take the memory of the whole machine."""

    def __init__(self, source: str, limits: Limits) -> None:
        """:param source: the trace, for people."""
        self._source = source
        self._limits = limits
        self._look_at = 0
        self._most = limits.events
        self._left_bytes: int | None = None

    def check(self, events: int) -> None:
        """Pass while so many events may be there.

        :raises TraceError: they are more than the limit, or than there is memory for.
        """
        if events >= self._look_at:
            self._look_at = events + LOOK_EVENTS
            self._look(events)
        if events > self._limits.events:
            raise TraceError(
                f"Trace {self._source} holds more than {self._limits.events} events; record a shorter window"
            )
        if events > self._most:
            raise TraceError(
                f"Trace {self._source} holds more than {self._most} events, and at {EVENT_BYTES} bytes each the "
                f"{format_bytes(self._left_bytes)} of memory that it may take here hold no more; record a shorter "
                "window, or read it where there is more memory"
            )

    def _look(self, events: int) -> None:
        if self._limits.memory_bytes is not None:
            self._left_bytes = self._limits.memory_bytes
        else:
            usable = read_host_limits().usable
            self._left_bytes = None if usable is None else usable + events * _HELD_BYTES
        if self._left_bytes is not None:
            self._most = min(self._limits.events, self._left_bytes // EVENT_BYTES)
