"""Is a device event computation, communication or movement of memory?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np

from tightship_analyzers.trace.columns import EventKind, Evidence, Int8s
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Trace

COMMUNICATION_PATTERNS = re.compile(r"(^nccl.*)|(^hip)|(^hccl)|(.*ncclKernel.*)")
MEMORY_PATTERNS = re.compile(r"(^(hip)?Memcpy)|(^(hip)?Memset)|(^dma)")
"""HolisticTraceAnalysis' patterns; communication is tested first, what matches neither computes."""


class KernelClass(IntEnum):
    """What a device event is for."""

    COMPUTE = 0
    COMMUNICATION = 1
    MEMORY = 2

    @property
    def word(self) -> str:
        """As results print it."""
        return self.name.lower()


class Scheme(StrEnum):
    """Who decides what is communication, see [Note: two classifications]."""

    RECOGNISED = "recognised"
    """Our recognition."""
    PATTERNS = "patterns"
    """The name patterns of HolisticTraceAnalysis."""


@dataclass(frozen=True, slots=True, eq=False)
class KernelClasses:
    """The class of each device event, by both schemes; every column has one cell per row of `Trace.device_events`."""

    recognised: Int8s
    """A `KernelClass`."""
    patterns: Int8s
    """A `KernelClass`."""
    evidence: Int8s
    """An `Evidence`, of the recognised class."""

    @property
    def differing(self) -> int:
        """How many events the two schemes class differently."""
        return int((self.recognised != self.patterns).sum())

    @property
    def inferred(self) -> int:
        """How many events are called communication by their name alone."""
        return int((self.evidence == Evidence.NAME).sum())

    def by(self, scheme: Scheme) -> Int8s:
        """The classes by one scheme."""
        return self.recognised if scheme is Scheme.RECOGNISED else self.patterns


def kernel_classes(trace: Trace) -> KernelClasses:
    """Class the device events of a trace; empty columns where it has none."""
    events = trace.device_events
    recognised = np.full(len(events), KernelClass.COMPUTE, dtype=np.int8)
    recognised[(events.kind == EventKind.COPY) | (events.kind == EventKind.SET)] = KernelClass.MEMORY
    recognised[events.kind == EventKind.COLLECTIVE] = KernelClass.COMMUNICATION
    return KernelClasses(recognised=recognised, patterns=_by_patterns(trace), evidence=events.evidence)


def class_time(trace: Trace, scheme: Scheme, classes: KernelClasses | None = None) -> dict[KernelClass, Intervals]:
    """When any event of each class ran; `classes` are those of the trace, where they are known already."""
    numbers = (classes or kernel_classes(trace)).by(scheme)
    return {kind: Intervals.of_table(trace.device_events.take(numbers == kind)) for kind in KernelClass}


def _by_patterns(trace: Trace) -> Int8s:
    name = trace.device_events.name
    classes = np.full(len(name), KernelClass.COMPUTE, dtype=np.int8)
    classes[trace.names.mask(name, lambda text: MEMORY_PATTERNS.match(text) is not None)] = KernelClass.MEMORY
    communicates = trace.names.mask(name, lambda text: COMMUNICATION_PATTERNS.match(text) is not None)
    classes[communicates] = KernelClass.COMMUNICATION
    return classes
