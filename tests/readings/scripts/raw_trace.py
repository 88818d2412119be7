"""Reads a Chrome trace as it is: events as dictionaries, times in integer nanoseconds. For the scripts beside it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Interval = tuple[int, int]


def load(path: str | Path) -> dict[str, Any]:
    """The whole file; numbers with a point are exact decimals."""
    data = Path(path).read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    content = json.loads(data, parse_float=Decimal)
    return content if isinstance(content, dict) else {"traceEvents": content}


def ns(time_us: Any) -> int:
    """Microseconds of the file in ns, exact."""
    return int(Decimal(str(time_us)) * 1000)


def complete_events(path: str | Path) -> list[Event]:
    """Complete events by start, each with `start` and `end` in ns."""
    events = [event for event in load(path)["traceEvents"] if event.get("ph") == "X" and "dur" in event]
    for event in events:
        event["start"] = ns(event["ts"])
        event["end"] = event["start"] + ns(event["dur"])
    return sorted(events, key=lambda event: (event["start"], -event["end"]))


def category(event: Event) -> str:
    """Its category in lower case; empty where it has none."""
    return str(event.get("cat") or "").lower()


DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}


def on_device(events: Iterable[Event]) -> list[Event]:
    """Kernels, copies and sets."""
    return [event for event in events if category(event) in DEVICE]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time without overlap, in order."""
    merged: list[list[int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        elif end > start:
            merged.append([start, end])
    return [(start, end) for start, end in merged]


def length(intervals: Sequence[Interval]) -> int:
    """Sum of the lengths, ns."""
    return sum(end - start for start, end in intervals)


def within(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """What of them lies in the window."""
    cut = ((max(start, window[0]), min(end, window[1])) for start, end in intervals)
    return [(start, end) for start, end in cut if end > start]
