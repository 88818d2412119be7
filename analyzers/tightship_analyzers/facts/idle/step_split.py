"""Every nanosecond of the window in exactly one bucket of the run's account."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from tightship_analyzers.facts.activity.device_busy import DeviceBusy
from tightship_analyzers.facts.idle.causes import Cause, IdleCauses
from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.trace.intervals import Intervals
from tightship_platform.vocabulary import Bucket


@dataclass(frozen=True, slots=True, eq=False)
class StepSplit:
    """Bucket → when, within the window. The sets are disjoint and together are the window."""

    needs: ClassVar[Needs] = (DeviceBusy, IdleCauses)

    spans: dict[Bucket, Intervals]

    @property
    def buckets_ns(self) -> dict[Bucket, int]:
        """Bucket → ns; the values sum to the window exactly."""
        return {bucket: spans.measure_ns for bucket, spans in self.spans.items()}

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """The device's work first; idle time by its causes."""
        busy, idle = facts[DeviceBusy], facts[IdleCauses]
        split = {Bucket.PRODUCTIVE: busy.compute, Bucket.COMMUNICATION: busy.communication - busy.compute}
        causes: dict[Bucket, list[Cause]] = {}
        for cause in Cause:
            causes.setdefault(cause.bucket, []).append(cause)
        for bucket, together in causes.items():
            split[bucket] = split.get(bucket, Intervals.none()) | idle.window.spans(*together)
        return cls(split)
