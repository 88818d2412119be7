"""The processor as the one device of a host that has no accelerator.

The same columns as a GPU where they mean something: busy share, memory in use (RAM), package power where RAPL may be
read. What has no meaning on a processor (SM activity, PCIe of the device, NVLink) stays null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil

from tightship_collectors.sources.base import ERROR, OK, DeviceProcess, Rates
from tightship_collectors.sources.names import processor_name
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import DeviceKind
from tightship_platform.wire import DeviceRecord, DeviceSample, SourceState

CPU_UUID = "cpu"
MICROJOULES_PER_JOULE = 1_000_000


class BusyShare:
    """Share of processor time that was spent computing since the last reading, over all cores (0..1)."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None

    def update(self, times: Any) -> float | None:
        """Take a `psutil.cpu_times()`; None at first. Guest time is already part of user time, stolen time is lost."""
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        unused = times.idle + getattr(times, "iowait", 0.0) + getattr(times, "steal", 0.0)
        before, self._last = self._last, (total - unused, total)
        if before is None or total <= before[1]:
            return None
        busy: float = (self._last[0] - before[0]) / (total - before[1])
        return min(1.0, max(0.0, busy))


class CpuSource:
    """Reads the processor through psutil; package power through RAPL (root only on most kernels)."""

    def __init__(
        self,
        *,
        clock: Callable[[], int] = now_ns,
        powercap: Path = Path("/sys/class/powercap"),
        cpuinfo: Path = Path("/proc/cpuinfo"),
    ) -> None:
        self._clock = clock
        self._busy = BusyShare()
        self._energy = Rates()
        self._packages = _rapl_packages(powercap)
        self._error = ""
        memory = psutil.virtual_memory().total
        self._device = DeviceRecord(
            uuid=CPU_UUID, kind=DeviceKind.CPU.value, name=processor_name(cpuinfo), memory_bytes=memory
        )

    def state(self) -> SourceState:
        """`ok` unless /proc cannot be read."""
        power = "with package power" if self._packages else "no package power (RAPL absent or not readable)"
        detail = self._error or f"{self._device.name}, {psutil.cpu_count() or 1} logical cores, {power}"
        return SourceState(name="cpu", state=ERROR if self._error else OK, detail=detail)

    def devices(self) -> Sequence[DeviceRecord]:
        """One: the whole processor, with the host's RAM as its memory."""
        return [self._device]

    def read(self) -> Iterable[DeviceSample]:
        """One sample."""
        time_ns = self._clock()
        try:
            util = self._busy.update(psutil.cpu_times())
            memory = psutil.virtual_memory()
            self._error = ""
        except (OSError, RuntimeError, psutil.Error) as error:
            self._error = f"cannot read the processor's counters: {error}"
            return []
        used = memory.total - memory.available
        return [
            DeviceSample(
                time_ns=time_ns,
                device=CPU_UUID,
                util_frac=util,
                memory_used_bytes=used,
                power_w=self._power_w(time_ns),
            )
        ]

    def processes(self) -> Iterable[DeviceProcess]:
        """None in particular: every process of the host holds the processor."""
        return ()

    def _power_w(self, time_ns: int) -> float | None:
        watts = []
        for package in self._packages:
            rate = self._energy.per_second(str(package), _whole_number(package), time_ns)
            if rate is None:
                return None
            watts.append(rate / MICROJOULES_PER_JOULE)
        return sum(watts) if watts else None


def _rapl_packages(powercap: Path) -> list[Path]:
    """Energy counters of the processor packages; their cores and DRAM are parts of them and would count twice."""
    found = []
    for name in sorted(powercap.glob("intel-rapl:*/name")):
        try:
            if name.read_text(encoding="ascii").startswith("package") and _whole_number(name.parent / "energy_uj"):
                found.append(name.parent / "energy_uj")
        except (OSError, UnicodeDecodeError):
            continue
    return found


def _whole_number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
