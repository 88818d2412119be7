"""The host itself: processor, memory, disks and network, through psutil.

Disks and interfaces are counted where the hardware is: a logical volume, a RAID or a bridge moves the same bytes again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from tightship_collectors.sources.base import ERROR, OK, Rates
from tightship_collectors.sources.cpu import BusyShare
from tightship_platform.units import now_ns
from tightship_platform.wire import HostSampleRecord, SourceState


class HostSource:
    """Reads the host's own counters."""

    def __init__(self, *, clock: Callable[[], int] = now_ns, sysfs: Path = Path("/sys")) -> None:
        self._clock = clock
        self._sysfs = sysfs
        self._busy = BusyShare()
        self._rates = Rates()
        self._physical: dict[str, bool] = {}
        self._error = ""

    def state(self) -> SourceState:
        """`ok` unless /proc cannot be read."""
        detail = self._error or f"psutil {psutil.__version__}"
        return SourceState(name="host", state=ERROR if self._error else OK, detail=detail)

    def read(self) -> Iterable[HostSampleRecord]:
        """One sample; none when the host's counters cannot be read."""
        time_ns = self._clock()
        try:
            memory = psutil.virtual_memory()
            cpu = self._busy.update(psutil.cpu_times())
            self._error = ""
        except (OSError, RuntimeError, psutil.Error) as error:
            self._error = f"cannot read the host's counters: {error}"
            return []
        disk_read, disk_write = self._disk_bytes()
        net_rx, net_tx = self._net_bytes()
        rate = self._rates.per_second
        return [
            HostSampleRecord(
                time_ns=time_ns,
                cpu_frac=cpu,
                memory_used_bytes=memory.total - memory.available,
                swap_used_bytes=_swap_used_bytes(),
                disk_read_bytes_per_s=rate("disk_read", disk_read, time_ns),
                disk_write_bytes_per_s=rate("disk_write", disk_write, time_ns),
                net_rx_bytes_per_s=rate("net_rx", net_rx, time_ns),
                net_tx_bytes_per_s=rate("net_tx", net_tx, time_ns),
            )
        ]

    def _disk_bytes(self) -> tuple[int | None, int | None]:
        try:
            disks = psutil.disk_io_counters(perdisk=True, nowrap=False)
        except (OSError, RuntimeError, NotImplementedError):
            return None, None
        real = [counters for name, counters in disks.items() if self._is_physical("block", name)]
        if not real:
            return None, None
        return sum(c.read_bytes for c in real), sum(c.write_bytes for c in real)

    def _net_bytes(self) -> tuple[int | None, int | None]:
        try:
            cards = psutil.net_io_counters(pernic=True, nowrap=False)
        except (OSError, RuntimeError):
            return None, None
        real = [counters for name, counters in cards.items() if self._is_physical("class/net", name)]
        # A container sees only the far end of a virtual pair.
        real = real or [counters for name, counters in cards.items() if name != "lo"]
        if not real:
            return None, None
        return sum(c.bytes_recv for c in real), sum(c.bytes_sent for c in real)

    def _is_physical(self, kind: str, name: str) -> bool:
        key = f"{kind}/{name}"
        if key not in self._physical:
            self._physical[key] = (self._sysfs / key / "device").exists()
        return self._physical[key]


def _swap_used_bytes() -> int | None:
    try:
        return psutil.swap_memory().used
    except (OSError, RuntimeError):
        return None
