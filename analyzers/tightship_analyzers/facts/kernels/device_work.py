"""Which device events the host started when: the bridge from a host range to its work on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.trace.model import DeviceEvents, Int32s, Int64s


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWork:
    """Device events whose launch is in the trace, by the time of their launch."""

    needs: ClassVar[Needs] = ()

    events: DeviceEvents
    row: Int64s
    """(events,) in `Trace.device_events`."""
    launched_ns: Int64s
    """(events,) start of the launch, ascending."""
    tid: Int32s
    """(events,) thread of the launch."""

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Needs an accelerator and its runtime calls."""
        trace = facts.trace
        if trace.device_kind != "gpu":
            return NotApplicable("needs an accelerator; the trace has no device events")
        linked = np.flatnonzero(trace.device_events.launch >= 0)
        if not len(linked):
            return NotApplicable("needs runtime calls that launch the device's work; the trace holds none")
        launches = trace.device_events.launch[linked]
        order = np.argsort(trace.launches.start_ns[launches], kind="stable")
        return cls(
            events=trace.device_events.take(linked[order]),
            row=linked[order],
            launched_ns=trace.launches.start_ns[launches[order]],
            tid=trace.launches.tid[launches[order]],
        )

    def started_in(self, tid: int, start_ns: int, end_ns: int) -> DeviceEvents:
        """Events that a thread launched within [start_ns, end_ns)."""
        return self.events.take(self.numbers_in(tid, start_ns, end_ns))

    def numbers_in(self, tid: int, start_ns: int, end_ns: int) -> Int64s:
        """The same as rows of this table."""
        first, stop = np.searchsorted(self.launched_ns, (start_ns, end_ns))
        rows = np.arange(int(first), int(stop))
        found: Int64s = rows[self.tid[rows] == tid]
        return found
