"""Temporal breakdown: how much of the time the device computed, did something else, or did nothing."""

from __future__ import annotations

from dataclasses import dataclass

from tightship_analyzers.metrics.device_events import NO_DEVICE_EVENTS
from tightship_analyzers.metrics.kernel_classes import KernelClass, KernelClasses, Scheme, class_time
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.not_applicable import NotApplicable


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporalBreakdown:
    """The device's time; `idle_ns + compute_ns + non_compute_ns == kernel_span_ns`."""

    kernel_span_ns: int
    """From the start of the first device event to the end of the last."""
    idle_ns: int
    """Nothing ran."""
    compute_ns: int
    """At least one computing kernel ran."""
    non_compute_ns: int
    """Only communication and movement of memory ran."""

    @property
    def idle_frac(self) -> float:
        """Idle time as a share of the span; 0 where the span is empty."""
        return self.idle_ns / self.kernel_span_ns if self.kernel_span_ns else 0.0


def temporal_breakdown(
    trace: Trace, *, scheme: Scheme = Scheme.RECOGNISED, classes: KernelClasses | None = None
) -> TemporalBreakdown | NotApplicable:
    """Split the device's time, all streams together; `classes` are those of the trace, where known already."""
    events = trace.device_events
    if not len(events):
        return NO_DEVICE_EVENTS
    span_ns = int(events.end_ns.max() - events.start_ns.min())
    busy_ns = Intervals.of_table(events).measure_ns
    compute_ns = class_time(trace, scheme, classes)[KernelClass.COMPUTE].measure_ns
    return TemporalBreakdown(
        kernel_span_ns=span_ns,
        idle_ns=span_ns - busy_ns,
        compute_ns=compute_ns,
        non_compute_ns=busy_ns - compute_ns,
    )
