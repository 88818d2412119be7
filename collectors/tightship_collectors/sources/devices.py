"""The devices of this host: what NVML lists, or the processor where there is no accelerator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tightship_collectors.sources.base import ABSENT, DeviceProcess, DeviceSource
from tightship_collectors.sources.cpu import CpuSource
from tightship_collectors.sources.nvml import NvmlSource
from tightship_platform.wire import DeviceRecord, DeviceSample, SourceState


class HostDevices:
    """All sources of device samples as one.

    The processor counts as a device only on a host without accelerators. Where there are some that do not answer, the
    host has no device at all for now: to call its processor one would be wrong.
    """

    def __init__(self, *, accelerators: DeviceSource | None = None, processor: DeviceSource | None = None) -> None:
        self._accelerators = accelerators or NvmlSource()
        self._processor = processor or CpuSource()

    def states(self) -> list[SourceState]:
        """What each source sees."""
        return [self._accelerators.state(), self._processor.state()]

    def devices(self) -> Sequence[DeviceRecord]:
        """The devices that are sampled."""
        chosen = self._chosen()
        return chosen.devices() if chosen is not None else []

    def read(self) -> list[DeviceSample]:
        """One sample per device."""
        # Asked first, so that a driver that was loaded since is noticed.
        found = list(self._accelerators.read())
        if found or self._chosen() is not self._processor:
            return found
        return list(self._processor.read())

    def processes(self) -> Iterable[DeviceProcess]:
        """Which processes hold which accelerator."""
        return self._accelerators.processes()

    def _chosen(self) -> DeviceSource | None:
        if self._accelerators.devices():
            return self._accelerators
        return self._processor if self._accelerators.state().state == ABSENT else None
