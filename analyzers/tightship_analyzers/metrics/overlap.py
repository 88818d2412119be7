"""How much of the communication computation hid."""

from __future__ import annotations

from dataclasses import dataclass

from tightship_analyzers.metrics.device_events import NO_DEVICE_EVENTS
from tightship_analyzers.metrics.kernel_classes import KernelClass, KernelClasses, Scheme, class_time
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.not_applicable import NotApplicable


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Communication and what ran meanwhile."""

    comm_ns: int
    """At least one collective ran."""
    overlapped_ns: int
    """Of that, a computing kernel ran too."""

    @property
    def exposed_ns(self) -> int:
        """Exposed communication."""
        return self.comm_ns - self.overlapped_ns

    @property
    def overlapped_frac(self) -> float | None:
        """The hidden share; None where there was no communication."""
        return self.overlapped_ns / self.comm_ns if self.comm_ns else None


def overlap(
    trace: Trace, *, scheme: Scheme = Scheme.RECOGNISED, classes: KernelClasses | None = None
) -> Overlap | NotApplicable:
    """Over all streams together; `classes` are those of the trace, where known already."""
    if not len(trace.device_events):
        return NO_DEVICE_EVENTS
    time = class_time(trace, scheme, classes)
    communication = time[KernelClass.COMMUNICATION]
    return Overlap(
        comm_ns=communication.measure_ns, overlapped_ns=(communication & time[KernelClass.COMPUTE]).measure_ns
    )
