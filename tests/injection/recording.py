"""A recording whose time can be opened to put something in: everything later moves, consistently, to the nanosecond."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from trace_files import with_times

from tightship_analyzers.trace.kineto.kinds import COPIES, KERNELS, SETS, SYNCS, TABLE_OF

DEVICE = frozenset(name for name, table in TABLE_OF.items() if table in (KERNELS, COPIES, SETS, SYNCS))
DEVICE_SIDE = DEVICE | {"gpu_user_annotation"}

Event = dict[str, Any]


def _ns(value: Any) -> int:
    return round(Decimal(str(value)) * 1000)


def _us(ns: int) -> str:
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"


class Recording:
    """Kineto's JSON with times in integer ns, as the file gives them (without the base time)."""

    def __init__(self, text: bytes) -> None:
        content = json.loads(text, parse_float=Decimal, strict=False)
        if isinstance(content, list):
            content = {"traceEvents": content}
        self.events: list[Event] = [
            event for event in content.pop("traceEvents") if isinstance(event.get("ts"), _NUMBER)
        ]
        self.rest: dict[str, Any] = content
        self.start_ns = np.array([_ns(event["ts"]) for event in self.events], dtype=np.int64)
        lasting = [event.get("ph") == "X" and isinstance(event.get("dur"), _NUMBER) for event in self.events]
        durations = [_ns(event["dur"]) if lasts else 0 for event, lasts in zip(self.events, lasting, strict=True)]
        self.end_ns = self.start_ns + np.array(durations, dtype=np.int64)
        self.lasts = np.array(lasting, dtype=np.bool_)
        self.on_device = np.array([event.get("cat") in DEVICE_SIDE for event in self.events], dtype=np.bool_)
        self._added: list[tuple[Event, int, int]] = []
        self._next_link = 1 + max((self._link(event) for event in self.events), default=0)

    @classmethod
    def open(cls, path: Path) -> Recording:
        """From a file, plain or gzip."""
        text = path.read_bytes()
        return cls(gzip.decompress(text) if text[:2] == b"\x1f\x8b" else text)

    @staticmethod
    def _link(event: Event) -> int:
        args = event.get("args")
        found = args.get("correlation") if isinstance(args, dict) else None
        return found if isinstance(found, int) else 0

    def link(self) -> int:
        """A correlation that nothing uses yet."""
        self._next_link += 1
        return self._next_link

    def open_time(self, at_ns: int, length_ns: int) -> None:
        """What begins at or after `at_ns` moves; what the host has open then lasts longer; the device is not held."""
        later = self.start_ns >= at_ns
        around = ~later & (self.end_ns > at_ns) & ~self.on_device
        self.start_ns[later] += length_ns
        self.end_ns[later | around] += length_ns
        self._added = [
            (event, start + length_ns, end + length_ns) if start >= at_ns else (event, start, end)
            for event, start, end in self._added
        ]

    def add(self, start_ns: int, end_ns: int, **event: Any) -> None:
        """One more event."""
        self._added.append(({"ph": "X", **event}, start_ns, end_ns))

    def text(self) -> bytes:
        """The file."""
        events = [
            event | {"ts": _us(start)} | ({"dur": _us(end - start)} if lasts else {})
            for event, start, end, lasts in zip(
                self.events, self.start_ns.tolist(), self.end_ns.tolist(), self.lasts.tolist(), strict=True
            )
        ]
        events += [event | {"ts": _us(start), "dur": _us(end - start)} for event, start, end in self._added]
        whole = self.rest | {"traceEvents": events}
        return with_times(json.dumps(whole, default=float)).encode()


_NUMBER = (int, float, Decimal, str)
