"""Is a device event computation, communication or movement of memory?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np

from tightship_analyzers.trace.columns import EventKind, Int8s
from tightship_analyzers.trace.communication import launched_by_collectives
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


class Evidence(IntEnum):
    """Why an event counts as communication; the strongest that there is."""

    NONE = 0
    """It does not."""
    NAME = 1
    """Its name is on our list; the trace says nothing more, so it is inferred."""
    LINK = 2
    """An operator that the trace calls a collective launched it itself."""
    ARGUMENTS = 3
    """It carries the arguments of a collective."""


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
    told = np.zeros(len(events), dtype=np.bool_)
    told[trace.collectives.row[trace.collectives.on_device]] = True
    told_ops = np.zeros(len(trace.host_ops), dtype=np.bool_)
    told_ops[trace.collectives.row[~trace.collectives.on_device]] = True
    linked = launched_by_collectives(trace.names, trace.host_ops, told_ops, trace.launches, events)
    collective = events.kind == EventKind.COLLECTIVE
    recognised = np.full(len(events), KernelClass.COMPUTE, dtype=np.int8)
    recognised[(events.kind == EventKind.COPY) | (events.kind == EventKind.SET)] = KernelClass.MEMORY
    recognised[collective] = KernelClass.COMMUNICATION
    evidence = np.full(len(events), Evidence.NONE, dtype=np.int8)
    evidence[collective] = Evidence.NAME
    evidence[collective & linked] = Evidence.LINK
    evidence[told] = Evidence.ARGUMENTS
    return KernelClasses(recognised=recognised, patterns=_by_patterns(trace), evidence=evidence)


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
