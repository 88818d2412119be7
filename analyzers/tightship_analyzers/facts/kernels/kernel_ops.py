"""Which operator launched each event of the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.metrics.launching_ops import launching_ops
from tightship_analyzers.trace.columns import EventKind
from tightship_analyzers.trace.joins import numbers_in
from tightship_analyzers.trace.model import Bools, DeviceEvents, HostOps, Int64s


@dataclass(frozen=True, slots=True, eq=False)
class KernelOps:
    """Device events that share time with the window, by start."""

    needs: ClassVar[Needs] = (Window,)

    events: DeviceEvents
    row: Int64s
    """(events,) row in `Trace.device_events`."""
    op: Int64s
    """(events,) row in `Trace.host_ops` of the innermost operator around the launch; -1: unknown."""

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """By the launch; where the trace does not hold it, by the external id that operator and event share."""
        trace, window = facts.trace, facts[Window]
        if trace.device_kind != "gpu":
            return NotApplicable("needs an accelerator; the trace has no device events")
        everything = trace.device_events
        row = np.flatnonzero((everything.start_ns < window.end_ns) & (everything.end_ns > window.start_ns))
        events = everything.take(row)
        used = numbers_in(events.launch[events.launch >= 0])
        by_launch = np.full(len(trace.launches) + 1, -1, dtype=np.int64)
        by_launch[used] = launching_ops(trace.host_ops, trace.launches.take(used))
        op = by_launch[events.launch]
        return cls(events, row, np.where(op >= 0, op, _by_external_id(trace.host_ops, events)))

    def kernels_of(self, ops: HostOps, names: Iterable[int]) -> Int64s:
        """Kernels that an operator of one of these names launched itself: rows of this table. `ops` as in `under`."""
        rows = np.flatnonzero((self.op >= 0) & (self.events.kind == EventKind.KERNEL))
        return rows[np.isin(ops.name[self.op[rows]], list(names))]

    def under(self, ops: HostOps, chosen: Bools) -> Bools:
        """(events,) was it launched by one of the chosen operators itself? `ops` are those of the trace."""
        return np.append(chosen, False)[self.op]


def alone(events: DeviceEvents) -> Bools:
    """(events,) does each run while no other one of the table does? Those of other devices do not count."""
    result = np.ones(len(events), dtype=np.bool_)
    for device in np.unique(events.device).tolist():
        own = np.flatnonzero(events.device == device)
        start_ns, end_ns = events.start_ns[own], events.end_ns[own]
        reach = np.maximum.accumulate(end_ns)
        result[own[1:]] &= reach[:-1] <= start_ns[1:]
        result[own[:-1]] &= start_ns[1:] >= end_ns[:-1]
    return result


def _by_external_id(ops: HostOps, events: DeviceEvents) -> Int64s:
    known = np.flatnonzero(ops.external_id > 0)
    if not len(known):
        return np.full(len(events), -1, dtype=np.int64)
    order = known[np.argsort(ops.external_id[known], kind="stable")]
    ids = ops.external_id[order]
    at = np.minimum(np.searchsorted(ids, events.external_id), len(ids) - 1)
    return np.where((ids[at] == events.external_id) & (events.external_id > 0), order[at], -1)
