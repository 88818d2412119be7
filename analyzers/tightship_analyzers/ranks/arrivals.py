"""When one rank arrived at its collectives, and when it left them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightship_analyzers.metrics.kernel_classes import KernelClass, kernel_classes
from tightship_analyzers.metrics.step_filter import launched_ns
from tightship_analyzers.trace.columns import Bools, Int64s
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.not_applicable import NotApplicable
from tightship_platform.text import shown

NO_COLLECTIVES = NotApplicable("needs collectives on the device; the trace holds none")
NO_HOST_COLLECTIVES = NotApplicable("needs device events, or collectives of gloo on the CPU; the trace holds neither")
GLOO = "gloo:"
"""How torch names the ranges in which gloo's threads carry out a collective."""

Key = tuple[str, str, int]
"""What a collective is called on every rank: name, process group, number. See `CollectiveArrivals.keys`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveArrivals:
    """The collectives of one rank in order of arrival."""

    keys: tuple[Key, ...]
    """(collectives,) With a recorded `Seq`: collective, process group, Seq. Else kernel, empty, and the ordinal of
    this kernel in the trace it is."""
    numbered: Bools
    """(collectives,) The trace records a `Seq`."""
    start_ns: Int64s
    """(collectives,) Its kernel began to run: this rank had arrived."""
    end_ns: Int64s
    absolute: bool
    """Times are since the epoch, so that two ranks can be compared before anything is known of their collectives."""
    hidden: Intervals
    """When the device computed during any of them: what is waited then costs no time."""
    bounds_ns: Int64s
    """(steps + 1,) of the whole steps; empty where none are known."""
    step: Int64s
    """(collectives,) Number of the whole step in which it was launched, from 0; -1 outside of all."""

    def __len__(self) -> int:
        return len(self.keys)


def collective_arrivals(
    trace: Trace, bounds_ns: Int64s | None = None, busy: Intervals | None = None
) -> CollectiveArrivals | NotApplicable:
    """Take them from the events that `metrics.kernel_classes` recognises; of a job on the CPU from the ranges in which
    gloo's threads carry collectives out.

    :param bounds_ns: (steps + 1,) of the whole steps, where known.
    :param busy: when the job on a CPU computed; not used where there are device events.
    """
    events = trace.device_events
    if not len(events):
        return _on_host(trace, np.empty(0, dtype=np.int64) if bounds_ns is None else bounds_ns, busy)
    classes = kernel_classes(trace).recognised
    rows = np.flatnonzero(classes == KernelClass.COMMUNICATION)
    if not len(rows):
        return NO_COLLECTIVES
    communication = events.take(rows)
    keys: list[Key] = []
    numbered = np.zeros(len(rows), dtype=np.bool_)
    recorded = _recorded(trace)
    kernels = {name: shown(trace.names[name]) for name in np.unique(communication.name).tolist()}
    count: dict[str, int] = {}
    for place, (row, name) in enumerate(zip(rows.tolist(), communication.name.tolist(), strict=True)):
        known = recorded.get(row)
        if known is not None:
            keys.append(known)
            numbered[place] = True
            continue
        kernel = kernels[name]
        count[kernel] = number = count.get(kernel, -1) + 1
        keys.append((kernel, "", number))
    computing = Intervals.of_table(events.take(classes == KernelClass.COMPUTE))
    bounds = np.empty(0, dtype=np.int64) if bounds_ns is None else bounds_ns
    return CollectiveArrivals(
        keys=tuple(keys),
        numbered=numbered,
        start_ns=communication.start_ns,
        end_ns=communication.end_ns,
        absolute=trace.base_ns > 0 or trace.start_ns > EPOCH_FROM_NS,
        hidden=computing & Intervals.of_table(communication),
        bounds_ns=bounds,
        step=_steps_of(launched_ns(trace, communication), bounds),
    )


def _on_host(trace: Trace, bounds_ns: Int64s, busy: Intervals | None) -> CollectiveArrivals | NotApplicable:
    """A range begins when this rank has arrived, and ends when the last one has and the data are there."""
    ranges = trace.annotations_named(GLOO)
    if not len(ranges):
        return NO_HOST_COLLECTIVES
    ranges = ranges.take(np.argsort(ranges.start_ns, kind="stable"))  # several threads take turns
    count: dict[str, int] = {}
    keys: list[Key] = []
    for name in (shown(trace.names[name]) for name in ranges.name.tolist()):
        count[name] = number = count.get(name, -1) + 1
        keys.append((name, "", number))
    return CollectiveArrivals(
        keys=tuple(keys),
        numbered=np.zeros(len(keys), dtype=np.bool_),
        start_ns=ranges.start_ns,
        end_ns=ranges.end_ns,
        absolute=trace.base_ns > 0 or trace.start_ns > EPOCH_FROM_NS,
        hidden=(busy or Intervals.none()) & Intervals.of_table(ranges),
        bounds_ns=bounds_ns,
        step=_steps_of(ranges.start_ns, bounds_ns),
    )


def _steps_of(times_ns: Int64s, bounds_ns: Int64s) -> Int64s:
    step = np.searchsorted(bounds_ns, times_ns, side="right") - 1
    return np.where(step < len(bounds_ns) - 1, step, -1)


EPOCH_FROM_NS = 10**18
"""The year 2001: what is later counts from the epoch, what is earlier from some start of the machine's."""


def _recorded(trace: Trace) -> dict[int, Key]:
    """Device row → key, for collectives whose `Seq` the trace records and that are one event each."""
    table = trace.collectives.take(trace.collectives.on_device & (trace.collectives.seq >= 0))
    known = {name: shown(trace.names[name]) for name in {*table.name.tolist(), *table.group.tolist()} - {-1}}
    keys = [
        (known[name], known[group] if group >= 0 else "", seq)
        for name, group, seq in zip(table.name.tolist(), table.group.tolist(), table.seq.tolist(), strict=True)
    ]
    seen: dict[Key, int] = {}
    for key in keys:
        seen[key] = seen.get(key, 0) + 1
    return {row: key for row, key in zip(table.row.tolist(), keys, strict=True) if seen[key] == 1}


@dataclass(frozen=True, kw_only=True)
class ArrivalRows:
    """The same as plain values, to be stored."""

    names: list[str]
    groups: list[str]
    numbers: list[int]
    numbered: list[bool]
    start_ns: list[int]
    end_ns: list[int]
    absolute: bool
    hidden_start_ns: list[int]
    hidden_end_ns: list[int]
    bounds_ns: list[int]
    step: list[int]

    @classmethod
    def of(cls, arrivals: CollectiveArrivals) -> ArrivalRows:
        """Plain values of a rank's arrivals."""
        return cls(
            names=[name for name, _, _ in arrivals.keys],
            groups=[group for _, group, _ in arrivals.keys],
            numbers=[number for _, _, number in arrivals.keys],
            numbered=arrivals.numbered.tolist(),
            start_ns=arrivals.start_ns.tolist(),
            end_ns=arrivals.end_ns.tolist(),
            absolute=arrivals.absolute,
            hidden_start_ns=arrivals.hidden.start_ns.tolist(),
            hidden_end_ns=arrivals.hidden.end_ns.tolist(),
            bounds_ns=arrivals.bounds_ns.tolist(),
            step=arrivals.step.tolist(),
        )

    def arrivals(self) -> CollectiveArrivals:
        """The rank's arrivals again."""
        return CollectiveArrivals(
            keys=tuple(zip(self.names, self.groups, self.numbers, strict=True)),
            numbered=np.array(self.numbered, dtype=np.bool_),
            start_ns=np.array(self.start_ns, dtype=np.int64),
            end_ns=np.array(self.end_ns, dtype=np.int64),
            absolute=self.absolute,
            hidden=Intervals.of(
                np.array(self.hidden_start_ns, dtype=np.int64), np.array(self.hidden_end_ns, dtype=np.int64)
            ),
            bounds_ns=np.array(self.bounds_ns, dtype=np.int64),
            step=np.array(self.step, dtype=np.int64),
        )
