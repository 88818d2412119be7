"""A trace's figures straight from its text, by the definitions of HolisticTraceAnalysis: slow, plain, in integers.

It shares nothing with the product. Where the reference data are at hand a test shows that it finds the figures of a
third program on all of them.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events", "Kernel", "Memcpy", "Memset")
CALLS = ("cuda_runtime", "cuda_driver", "mtia_runtime", "Runtime")
MARKS = ("user_annotation", "Operator")
COMMUNICATION = re.compile(r"(^nccl.*)|(^hip)|(^hccl)|(.*ncclKernel.*)")
MEMORY = re.compile(r"(^(hip)?Memcpy)|(^(hip)?Memset)|(^dma)")
SHORT_WAIT_NS = 30_000

Stream = tuple[int, int]


def class_of(name: str) -> str:
    if COMMUNICATION.match(name):
        return "communication"
    return "memory" if MEMORY.match(name) else "compute"


def in_ns(text: str | int) -> int:
    """Microseconds as written → nanoseconds, the nearest."""
    return int((Decimal(text) * 1000).to_integral_value())


@dataclass(eq=False)
class Event:
    """Something with a duration."""

    name: str
    start: int
    end: int
    correlation: int
    stream: Stream
    call: Event | None = None


@dataclass
class BruteForce:
    """The device's side of one trace."""

    path: Path
    events: list[Event] = field(default_factory=list)
    """Of the device, without those of the last marked step where there are at least two."""
    unlinked: int = 0

    def __post_init__(self) -> None:
        calls: defaultdict[int, list[Event]] = defaultdict(list)
        marks: list[Event] = []
        for row in written_events(self.path):
            if row.get("ph") != "X":
                continue
            if row["cat"] in ON_DEVICE:
                self.events.append(_event(row))
            elif row["cat"] in CALLS:
                call = _event(row)
                calls[call.correlation].append(call)
            elif row["cat"] in MARKS and row["name"].startswith("ProfilerStep#"):
                marks.append(_event(row))
        if len({mark.name for mark in marks}) > 1:
            cut = max(mark.start for mark in marks)
            calls = defaultdict(list, {key: [one for one in some if one.start < cut] for key, some in calls.items()})
            self.events = [event for event in self.events if event.correlation > 0 and calls.get(event.correlation)]
        for event in self.events:
            alike = calls.get(event.correlation, []) if event.correlation > 0 else []
            alike.sort(key=lambda call: call.start)
            before = [call for call in alike if call.start <= event.start]
            event.call = (before or alike[:1] or [None])[-1]
        self.events.sort(key=lambda event: (event.start, -event.end))
        self.unlinked = sum(event.call is None for event in self.events)

    @cached_property
    def running(self) -> Counter[frozenset[str]]:
        """Of all events."""
        return running(self.events)

    def ran(self, *kinds: str) -> int:
        """Time in which all of these ran, whatever else did."""
        return sum(ns for together, ns in self.running.items() if together.issuperset(kinds))

    def by_stream(self) -> dict[Stream, list[Event]]:
        streams: defaultdict[Stream, list[Event]] = defaultdict(list)
        for event in self.events:
            streams[event.stream].append(event)
        return dict(sorted(streams.items()))

    def figures(self) -> dict[str, Any]:
        """What the published exact figures hold of a trace."""
        span = max((event.end for event in self.events), default=0) - min((e.start for e in self.events), default=0)
        idle, compute = self.running[frozenset()], self.ran("compute")
        temporal = {"kernel_span_ns": span, "idle_ns": idle, "compute_ns": compute}
        return {
            "device_events": len(self.events),
            "unlinked": self.unlinked,
            "temporal": temporal | {"non_compute_ns": span - idle - compute},
            "overlap": {"comm_ns": self.ran("communication"), "overlapped_ns": self.ran("communication", "compute")},
            "idle_by_stream": [{"stream": key[1], **_idle(events)} for key, events in self.by_stream().items()],
        }

    def queue(self, stream: Stream) -> list[tuple[int, int]]:
        """(time, length) after each change: a call puts one operation into the queue, its first event takes it out."""
        first: dict[int, tuple[int, int]] = {}
        for event in self.by_stream()[stream]:
            if event.call is not None:
                first.setdefault(id(event.call), (event.call.start, max(event.start, event.call.start)))
        changes = sorted([(put, 0) for put, _ in first.values()] + [(taken, 1) for _, taken in first.values()])
        length, result = 0, []
        for at, taken in changes:
            length += -1 if taken else 1
            result.append((at, length))
        return result


def written_events(path: Path) -> list[dict[str, Any]]:
    """All events of a file, times as they are written."""
    content = path.read_bytes()
    text = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    events: list[dict[str, Any]] = json.loads(text, parse_float=str)["traceEvents"]
    return events


def running(events: list[Event]) -> Counter[frozenset[str]]:
    """Which classes ran together → for how long; nothing at all is the idle time."""
    edges = [(event.start, 1, class_of(event.name)) for event in events]
    edges += [(event.end, -1, class_of(event.name)) for event in events]
    edges.sort()
    time: Counter[frozenset[str]] = Counter()
    active: Counter[str] = Counter()
    for (at, change, kind), (until, _, _) in pairwise(edges):
        active[kind] += change
        time[frozenset(name for name, count in active.items() if count > 0)] += until - at
    return time


def _event(row: dict[str, Any]) -> Event:
    args, start = row.get("args", {}), in_ns(row["ts"])
    where = (args.get("device", row["pid"]), args.get("stream", row["tid"])) if row["cat"] in ON_DEVICE else (-1, -1)
    return Event(row["name"], start, start + in_ns(row["dur"]), int(args.get("correlation", -1)), where)


def _idle(events: list[Event]) -> dict[str, int]:
    """The gaps of one stream, its events in order of start."""
    waits = {"host_wait_ns": 0, "kernel_wait_ns": 0, "other_ns": 0}
    dry = events[0].end
    for event in events[1:]:
        gap = event.start - dry
        if gap > 0:
            if event.call is None:
                kind = "other_ns"
            elif event.call.start > dry:
                kind = "host_wait_ns"
            else:
                kind = "kernel_wait_ns" if gap < SHORT_WAIT_NS else "other_ns"
            waits[kind] += gap
        dry = max(dry, event.end)
    return waits
