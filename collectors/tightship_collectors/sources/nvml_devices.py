"""The GPUs and MIG slices that NVML lists, and guarded questions to them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tightship_collectors.sources.base import Rates
from tightship_collectors.sources.names import clean_name, slice_name
from tightship_collectors.sources.nvml_gpm import Gpm
from tightship_platform.vocabulary import DeviceKind
from tightship_platform.wire import DeviceRecord

LOG = logging.getLogger(__name__)

MISSING = 0x7FFFFFFFFFFFFFF0
"""NVML and DCGM mark missing 64-bit values from here on."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A device as it is listed, before anything is allocated for it."""

    record: DeviceRecord
    handle: Any
    gpu: Any
    """Handle of the whole GPU; the same as `handle` unless this is a slice."""

    @property
    def is_slice(self) -> bool:
        """A MIG slice: it reports no power, temperature or clock."""
        return self.record.kind == DeviceKind.MIG.value


@dataclass(kw_only=True)
class NvmlDevice:
    """A device that is read every second. See `ask` for what happens to calls that it refuses."""

    nvml: Any
    found: Found
    gpm: Gpm | None
    rates: Rates = field(default_factory=Rates)
    unsupported: set[str] = field(default_factory=set)
    lost: str = ""
    """The driver's words when the GPU fell off the bus or wants a reset; cleared before each reading."""
    util_frac: float | None = None
    """As last read: tells an idle process from an unseen one."""
    processes: dict[int, int | None] = field(default_factory=dict)
    """pid → bytes, as last reported; kept while the driver hesitates."""
    utilization_until_us: int = 0
    """Driver time of the newest per-process utilisation read."""

    def ask(self, call: str, *args: Any) -> Any:
        """What NVML answers; None when it does not. What is not supported is never asked again."""
        key = f"{call}{args}" if args else call
        if key in self.unsupported:
            return None
        nvml = self.nvml
        try:
            return getattr(nvml, call)(self.found.handle, *args)
        except AttributeError:
            self.unsupported.add(key)
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                self.unsupported.add(key)
            elif error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED):
                self.lost = str(error)
        return None

    def close(self) -> None:
        """Give the driver's resources back."""
        if self.gpm is not None:
            self.gpm.close()


def find_devices(nvml: Any) -> Iterator[Found]:
    """Every GPU, and in place of a GPU in MIG mode its slices. A GPU that does not answer is left out and named once.

    :raises NVMLError: NVML itself does not answer.
    """
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            slices = list(_slices(nvml, gpu))
            yield from slices or [_listed(nvml, gpu, gpu)]
        except (nvml.NVMLError, UnicodeError) as error:
            LOG.warning("GPU %d does not answer and is left out: %s", index, error)


def open_device(nvml: Any, found: Found) -> NvmlDevice:
    """Prepare a listed device for reading, with GPM where it has that."""
    gpm: Gpm | None
    try:
        instance = nvml.nvmlDeviceGetGpuInstanceId(found.handle) if found.is_slice else None
        gpm = Gpm(nvml, found.gpu, gpu_instance=instance)
    except (nvml.NVMLError, AttributeError):
        gpm = None
    return NvmlDevice(nvml=nvml, found=found, gpm=gpm)


def size(value: int) -> int | None:
    """Bytes or a counter; None when the driver marks it as missing."""
    return int(value) if 0 <= value < MISSING else None


def _slices(nvml: Any, gpu: Any) -> Iterator[Found]:
    try:
        if nvml.nvmlDeviceGetMigMode(gpu)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return
        places = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)
    except nvml.NVMLError:
        return
    for place in range(places):
        try:
            yield _listed(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place), gpu)
        except nvml.NVMLError:
            # NVML numbers places, not slices: an empty place answers NOT_FOUND.
            continue


def _listed(nvml: Any, handle: Any, gpu: Any) -> Found:
    memory = size(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    reported = nvml.nvmlDeviceGetName(handle)
    whole = handle is gpu
    name = clean_name(nvml.nvmlDeviceGetName(gpu), otherwise="GPU")
    record = DeviceRecord(
        uuid=clean_name(nvml.nvmlDeviceGetUUID(handle), otherwise="unknown"),
        kind=(DeviceKind.GPU if whole else DeviceKind.MIG).value,
        name=name if whole else slice_name(name, reported, memory),
        memory_bytes=memory,
    )
    return Found(record=record, handle=handle, gpu=gpu)
