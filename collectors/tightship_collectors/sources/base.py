"""What every source of device samples offers to the agent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tightship_platform.wire import DeviceRecord, DeviceSample, SourceState

OK = "ok"
ABSENT = "absent"
ERROR = "error"


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceProcess:
    """What one process uses of one device at this moment."""

    pid: int
    device: str
    """UUID of the device."""
    memory_used_bytes: int | None = None
    util_frac: float | None = None
    """Share of the device's time that the process kept it busy."""


class DeviceSource(Protocol):
    """A kind of device on this host.

    No method raises for anything that the hardware or its driver does: what cannot be read is null, and `state` says
    why in one line.
    """

    def state(self) -> SourceState:
        """What this source sees: `ok`, `absent` (no such hardware here) or `error` (there, but unreadable)."""
        ...

    def devices(self) -> Sequence[DeviceRecord]:
        """The devices of this host; empty unless the state is `ok`."""
        ...

    def read(self) -> Iterable[DeviceSample]:
        """One sample per device, now."""
        ...

    def processes(self) -> Iterable[DeviceProcess]:
        """Which processes hold which device; none from a source whose device everybody holds."""
        ...


class Rates:
    """Per-second rates from counters that only grow."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}

    def per_second(self, name: str, value: int | None, time_ns: int) -> int | None:
        """Growth per second since the last call for `name`; None at first and when the counter was reset."""
        if value is None:
            self._last.pop(name, None)
            return None
        before = self._last.get(name)
        self._last[name] = (value, time_ns)
        if before is None or value < before[0] or time_ns <= before[1]:
            return None
        return (value - before[0]) * 1_000_000_000 // (time_ns - before[1])
