"""Kernel breakdown: the device's work by type and by name."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from tightship_analyzers.metrics.device_events import NO_DEVICE_EVENTS
from tightship_analyzers.metrics.duration_stats import DurationStats, grouped
from tightship_analyzers.metrics.kernel_classes import KernelClass, KernelClasses, Scheme, class_time, kernel_classes
from tightship_analyzers.trace.columns import Int64s
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.not_applicable import NotApplicable

TYPES_RUNNING = tuple(types for size in range(1, len(KernelClass) + 1) for types in combinations(KernelClass, size))
"""Which classes can run at the same time: each alone, each two, all three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelName:
    """All events of one name and type."""

    name: str
    type: KernelClass
    unlinked: int
    """How many of them have no launch in the trace."""
    duration: DurationStats


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTypes:
    """The device's busy time by type."""

    running_ns: dict[tuple[KernelClass, ...], int]
    """Time in which events of exactly these types ran, a key for each combination; they sum to the busy time."""
    duration: dict[KernelClass, DurationStats]
    """Of the single events; those that ran at the same time count each. Types without events are absent."""
    inferred: int
    """Events that are called communication by their name alone; 0 with the patterns, which know only names."""


def kernel_types(
    trace: Trace, *, scheme: Scheme = Scheme.RECOGNISED, classes: KernelClasses | None = None
) -> KernelTypes | NotApplicable:
    """Busy time by type, and by what ran together; `classes` are those of the trace, where known already."""
    if not len(trace.device_events):
        return NO_DEVICE_EVENTS
    classes = classes or kernel_classes(trace)
    running = _running_ns(class_time(trace, scheme, classes))
    stats = grouped(trace.device_events.dur_ns, classes.by(scheme))
    return KernelTypes(
        running_ns={types: running[sum(1 << kind for kind in types)] for types in TYPES_RUNNING},
        duration={KernelClass(kind): stats[kind] for kind in sorted(stats)},
        inferred=classes.inferred if scheme is Scheme.RECOGNISED else 0,
    )


def _running_ns(time: dict[KernelClass, Intervals]) -> list[int]:
    """How long exactly the classes of each set ran; a set is the sum of its classes' bits."""
    edges_ns: list[Int64s] = []
    changes: list[Int64s] = []
    for kind, part in time.items():
        edges_ns += [part.start_ns, part.end_ns]
        changes += [np.full(len(part), 1 << kind), np.full(len(part), -(1 << kind))]
    at_ns, change = np.concatenate(edges_ns), np.concatenate(changes)
    order = np.argsort(at_ns, kind="stable")
    running = np.cumsum(change[order])[:-1]
    # Floats add whole nanoseconds exactly up to 104 days.
    sums = np.bincount(running, weights=np.diff(at_ns[order]), minlength=1 << len(time))
    return [int(total) for total in sums]


def kernel_names(
    trace: Trace, *, scheme: Scheme = Scheme.RECOGNISED, classes: KernelClasses | None = None
) -> tuple[KernelName, ...] | NotApplicable:
    """One row per name and type, the greatest sum first; `classes` are those of the trace, where known already."""
    events = trace.device_events
    if not len(events):
        return NO_DEVICE_EVENTS
    group = events.name.astype(np.int64) * len(KernelClass) + (classes or kernel_classes(trace)).by(scheme)
    unlinked = np.bincount(group, weights=events.launch < 0)
    rows = [
        KernelName(
            name=trace.names[number // len(KernelClass)],
            type=KernelClass(number % len(KernelClass)),
            unlinked=int(unlinked[number]),
            duration=duration,
        )
        for number, duration in grouped(events.dur_ns, group).items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.duration.sum_ns, row.name, row.type)))
