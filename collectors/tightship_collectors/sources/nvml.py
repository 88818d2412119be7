"""NVIDIA GPUs and MIG slices through NVML; on Hopper and later with GPM (nvml_gpm.py).

What a device or driver does not support is null. A slice reports memory and GPM only: power, temperature and clocks
belong to the whole GPU and cannot be divided honestly.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tightship_collectors.sources.base import ABSENT, ERROR, OK, DeviceProcess
from tightship_collectors.sources.names import clean_name
from tightship_collectors.sources.nvml_devices import NvmlDevice, find_devices, open_device, size
from tightship_collectors.sources.nvml_gpm import GpmReading
from tightship_platform.units import now_ns, plural
from tightship_platform.wire import DeviceRecord, DeviceSample, SourceState

LOG = logging.getLogger(__name__)

REFRESH_S = 60.0
"""How often devices are listed again: slices are made and removed, drivers are loaded, GPUs fall off the bus."""
ALL_LINKS = 0xFFFFFFFF
"""Scope of an NVLink counter that sums over the links."""
MAX_MILLIWATTS = 10_000_000
MAX_MEGAHERTZ = 100_000


class NvmlSource:
    """Reads every GPU and MIG slice that NVML lists.

    :param nvml: the `pynvml` module or one that answers like it; None imports it.
    """

    def __init__(self, nvml: Any = None, *, clock: Callable[[], int] = now_ns) -> None:
        self._nvml = nvml
        self._clock = clock
        self._initialized = False
        self._devices: list[NvmlDevice] = []
        self._state = SourceState(name="nvml", state=ABSENT)
        self._refresh_at = 0.0
        self._refresh()

    def state(self) -> SourceState:
        """`absent`: no library, driver or GPU here. `error`: there are GPUs but NVML does not answer for them."""
        lost = [f"{d.found.record.name} {d.found.record.uuid}: {d.lost}" for d in self._devices if d.lost]
        return SourceState(name="nvml", state=ERROR, detail="; ".join(lost)) if lost else self._state

    def devices(self) -> Sequence[DeviceRecord]:
        """GPUs, and in place of a GPU in MIG mode its slices."""
        return [device.found.record for device in self._devices]

    def read(self) -> Iterable[DeviceSample]:
        """One sample per device. The first one lacks what is a difference of two (GPM, link counters)."""
        if time.monotonic() >= self._refresh_at:
            self._refresh()
        return [self._sample(device) for device in self._devices]

    def processes(self) -> Iterable[DeviceProcess]:
        """Which processes have a context on which device."""
        for device in self._devices:
            busy = _process_utilization(device)
            for pid, used in _listed_processes(device).items():
                yield DeviceProcess(
                    pid=pid, device=device.found.record.uuid, memory_used_bytes=used, util_frac=busy(pid)
                )

    def close(self) -> None:
        """Give the driver's resources back."""
        for device in self._devices:
            device.close()
        self._devices = []

    def _refresh(self) -> None:
        self._refresh_at = time.monotonic() + REFRESH_S
        try:
            if self._nvml is None:
                self._nvml = importlib.import_module("pynvml")
            if not self._initialized:
                self._nvml.nvmlInit()
                self._initialized = True
            found = list(find_devices(self._nvml))
        except ImportError as error:
            self._set_state(ABSENT, f"the Python package nvidia-ml-py is not installed ({error})")
            return
        except self._nvml.NVMLError as error:
            self._fail(error)
            return
        if [f.record for f in found] != [d.found.record for d in self._devices]:
            self.close()
            self._devices = [open_device(self._nvml, one) for one in found]
        if not found:
            self._set_state(ABSENT, "NVML lists no GPU")
            return
        with_gpm = sum(device.gpm is not None for device in self._devices)
        count = plural(len(found), "device")
        gpm = f"SM and tensor activity (GPM) on {with_gpm} of {len(found)}"
        self._set_state(OK, f"{count}, driver {self._driver()}, {gpm}")

    def _fail(self, error: Any) -> None:
        nvml = self._nvml
        self.close()
        self._initialized = False
        no_hardware = (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED)
        self._set_state(ABSENT if error.value in no_hardware else ERROR, str(error))

    def _driver(self) -> str:
        try:
            return clean_name(self._nvml.nvmlSystemGetDriverVersion(), otherwise="unknown")
        except self._nvml.NVMLError:
            return "unknown"

    def _set_state(self, state: str, detail: str) -> None:
        said = SourceState(name="nvml", state=state, detail=detail)
        if state == ERROR and said != self._state:
            LOG.warning("NVML does not answer, so no GPU is sampled: %s", detail)
        self._state = said

    def _sample(self, device: NvmlDevice) -> DeviceSample:
        device.lost = ""
        gpm = device.gpm.read() if device.gpm else GpmReading()
        sample = DeviceSample(
            time_ns=self._clock(),
            device=device.found.record.uuid,
            util_frac=gpm.graphics_frac,
            sm_active_frac=gpm.sm_active_frac,
            sm_occupancy_frac=gpm.sm_occupancy_frac,
            tensor_active_frac=gpm.tensor_active_frac,
            dram_active_frac=gpm.dram_active_frac,
            memory_used_bytes=_memory_used(device),
            pcie_rx_bytes_per_s=gpm.pcie_rx_bytes_per_s,
            pcie_tx_bytes_per_s=gpm.pcie_tx_bytes_per_s,
            nvlink_rx_bytes_per_s=gpm.nvlink_rx_bytes_per_s,
            nvlink_tx_bytes_per_s=gpm.nvlink_tx_bytes_per_s,
        )
        if not device.found.is_slice:
            _read_whole_gpu(device, sample)
        device.util_frac = sample.util_frac
        return sample


def _read_whole_gpu(device: NvmlDevice, sample: DeviceSample) -> None:
    rates = device.ask("nvmlDeviceGetUtilizationRates")
    if rates is not None and 0 <= rates.gpu <= 100:
        sample.util_frac = rates.gpu / 100
    milliwatts = device.ask("nvmlDeviceGetPowerUsage")
    sample.power_w = milliwatts / 1000 if milliwatts is not None and milliwatts < MAX_MILLIWATTS else None
    sample.temperature_c = _temperature(device)
    megahertz = device.ask("nvmlDeviceGetClockInfo", device.nvml.NVML_CLOCK_SM)
    sample.clock_hz = megahertz * 1_000_000 if megahertz is not None and megahertz < MAX_MEGAHERTZ else None
    if device.gpm is None:
        _read_links(device, sample)


def _memory_used(device: NvmlDevice) -> int | None:
    # Version 2 leaves out what the driver reserves for itself.
    memory = device.ask("nvmlDeviceGetMemoryInfo", device.nvml.nvmlMemory_v2)
    if memory is None:
        memory = device.ask("nvmlDeviceGetMemoryInfo")
    return size(memory.used) if memory is not None else None


def _temperature(device: NvmlDevice) -> float | None:
    sensor = device.nvml.NVML_TEMPERATURE_GPU
    degrees = device.ask("nvmlDeviceGetTemperatureV", sensor)
    if degrees is None:
        # Drivers before 565 know only the older call.
        degrees = device.ask("nvmlDeviceGetTemperature", sensor)
    return float(degrees) if degrees is not None and -50 <= degrees <= 200 else None


def _read_links(device: NvmlDevice, sample: DeviceSample) -> None:
    """PCIe and NVLink from byte counters, where there is no GPM.

    `nvmlDeviceGetPcieThroughput` is not used: each call blocks for its 20 ms window, which says little about a second.
    """
    nvml = device.nvml
    columns = {
        "pcie_rx_bytes_per_s": (nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0, 1),
        "pcie_tx_bytes_per_s": (nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0, 1),
        "nvlink_rx_bytes_per_s": (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS, 1024),
        "nvlink_tx_bytes_per_s": (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS, 1024),
    }
    values = device.ask("nvmlDeviceGetFieldValues", [(field_id, scope) for field_id, scope, _ in columns.values()])
    for value, (column, (_, _, width)) in zip(values or (), columns.items(), strict=False):
        count = _count(nvml, value)
        moved = None if count is None else count * width
        setattr(sample, column, device.rates.per_second(column, moved, sample.time_ns))


def _count(nvml: Any, value: Any) -> int | None:
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        return None
    if value.valueType == nvml.NVML_VALUE_TYPE_UNSIGNED_INT:
        return int(value.value.uiVal)
    return size(value.value.ullVal)


def _listed_processes(device: NvmlDevice) -> dict[int, int | None]:
    """pid → bytes. Under MPS the clients are listed apart from the server that holds the context."""
    listed = device.ask("nvmlDeviceGetComputeRunningProcesses")
    if listed is not None:
        clients = device.ask("nvmlDeviceGetMPSComputeRunningProcesses") or []
        device.processes = {
            int(p.pid): None if p.usedGpuMemory is None else size(p.usedGpuMemory) for p in [*listed, *clients]
        }
    return device.processes


def _process_utilization(device: NvmlDevice) -> Callable[[int], float | None]:
    """What share of the device a process used since the last call.

    The driver lists "one sample per process running, that had some non-zero utilization during the last sample
    period", and answers NOT_FOUND when it has none: a process that is not listed beside others was idle, and so is
    everybody on an idle device. Otherwise, and on a slice, nothing is known.
    """
    nvml = device.nvml
    samples: Sequence[Any] = ()
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(device.found.handle, device.utilization_until_us)
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_NOT_FOUND:
            return lambda pid: None
    shares: dict[int, list[float]] = {}
    newest = device.utilization_until_us
    for sample in samples:
        if sample.timeStamp > device.utilization_until_us and sample.smUtil <= 100:
            shares.setdefault(int(sample.pid), []).append(sample.smUtil / 100)
            newest = max(newest, sample.timeStamp)
    device.utilization_until_us = newest
    mean = {pid: sum(values) / len(values) for pid, values in shares.items()}
    unlisted = 0.0 if mean or device.util_frac == 0 else None
    return lambda pid: mean.get(pid, unlisted)
