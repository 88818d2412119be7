"""Time per user annotation: the ranges that user code or torch named, on the host and on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightship_analyzers.metrics.duration_stats import DurationStats, grouped
from tightship_analyzers.metrics.launched_work import LaunchedWork
from tightship_analyzers.trace.columns import Annotations
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.not_applicable import NotApplicable

NO_ANNOTATIONS = NotApplicable("needs user annotations (`record_function`, `ProfilerStep#`); the trace holds none")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationTime:
    """All ranges of one name."""

    name: str
    host: DurationStats
    """The ranges on the host; its count is 0 where the trace holds the name on the device only."""
    device: DurationStats
    """The ranges that the profiler drew on the device: first to last event that was launched within one, idle time
    between them included. Count 0 where it drew none."""
    device_work_ns: int
    """Durations of the device events that were launched within the ranges on the host, on their threads; what runs at
    the same time counts each, and what lies in nested ranges counts for all of them."""


def annotation_times(trace: Trace) -> tuple[AnnotationTime, ...] | NotApplicable:
    """One row per name, the most host time first, then the most device time."""
    host, device = trace.annotations, trace.device_annotations
    if not len(host) and not len(device):
        return NO_ANNOTATIONS
    on_host, on_device = _stats(host), _stats(device)
    work_ns = LaunchedWork.of(trace).device_ns(host.tid, host.start_ns, host.end_ns)
    work = {number: int(work_ns[host.name == number].sum()) for number in on_host}
    none = DurationStats.of(np.empty(0, dtype=np.int64))
    rows = [
        AnnotationTime(
            name=trace.names[number],
            host=on_host.get(number, none),
            device=on_device.get(number, none),
            device_work_ns=work.get(number, 0),
        )
        for number in on_host.keys() | on_device.keys()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.host.sum_ns, -row.device.sum_ns, row.name)))


def _stats(annotations: Annotations) -> dict[int, DurationStats]:
    return grouped(annotations.dur_ns, annotations.name)
