"""GPM: activity of SMs, tensor cores, DRAM and links from NVML itself, on Hopper and later, without DCGM.

A GPM metric is the difference of two samples, so the first reading yields nothing and each later one covers the time
since the reading before. https://docs.nvidia.com/deploy/nvml-api/group__nvmlGpmFunctions.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class GpmReading:
    """Activity since the reading before. Ratios 0..1, rates per second; null where the driver gave no value."""

    graphics_frac: float | None = None
    sm_active_frac: float | None = None
    sm_occupancy_frac: float | None = None
    tensor_active_frac: float | None = None
    dram_active_frac: float | None = None
    pcie_rx_bytes_per_s: int | None = None
    pcie_tx_bytes_per_s: int | None = None
    nvlink_rx_bytes_per_s: int | None = None
    nvlink_tx_bytes_per_s: int | None = None


FRACTIONS = {
    "graphics_frac": "NVML_GPM_METRIC_GRAPHICS_UTIL",
    "sm_active_frac": "NVML_GPM_METRIC_SM_UTIL",
    "sm_occupancy_frac": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "tensor_active_frac": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "dram_active_frac": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}
RATES = {
    "pcie_rx_bytes_per_s": "NVML_GPM_METRIC_PCIE_RX_PER_SEC",
    "pcie_tx_bytes_per_s": "NVML_GPM_METRIC_PCIE_TX_PER_SEC",
    "nvlink_rx_bytes_per_s": "NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC",
    "nvlink_tx_bytes_per_s": "NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC",
}
MAX_BYTES_PER_S = 10**14
"""Faster than any link there is: a reading above it is a driver's mistake."""


class Gpm:
    """GPM of one GPU or MIG slice. Allocates two driver samples and uses them in turn.

    :raises NVMLError: from the constructor, when this device has no GPM.
    """

    def __init__(self, nvml: Any, handle: Any, *, gpu_instance: int | None) -> None:
        """:param handle: of the GPU itself, also for a slice, which `gpu_instance` names."""
        self._nvml = nvml
        self._handle = handle
        self._gpu_instance = gpu_instance
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        self._before = nvml.nvmlGpmSampleAlloc()
        self._now = nvml.nvmlGpmSampleAlloc()
        self._primed = False
        self._names = [*FRACTIONS, *RATES]
        self._request = nvml.c_nvmlGpmMetricsGet_t()
        self._request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(self._names)
        for slot, name in enumerate(self._names):
            constant = FRACTIONS.get(name) or RATES[name]
            self._request.metrics[slot].metricId = getattr(nvml, constant)

    def read(self) -> GpmReading:
        """What happened since the last call; empty at first and when the driver fails."""
        nvml = self._nvml
        try:
            if self._gpu_instance is None:
                nvml.nvmlGpmSampleGet(self._handle, self._now)
            else:
                nvml.nvmlGpmMigSampleGet(self._handle, self._gpu_instance, self._now)
            self._before, self._now = self._now, self._before
            if not self._primed:
                self._primed = True
                return GpmReading()
            # After the swap `_before` is the sample just taken and `_now` the older one.
            self._request.sample1, self._request.sample2 = self._now, self._before
            nvml.nvmlGpmMetricsGet(self._request)
        except nvml.NVMLError:
            self._primed = False
            return GpmReading()
        values: dict[str, Any] = {}
        for slot, name in enumerate(self._names):
            metric = self._request.metrics[slot]
            if metric.nvmlReturn == nvml.NVML_SUCCESS:
                values[name] = _fraction(metric.value) if name in FRACTIONS else _bytes_per_s(metric.value)
        return GpmReading(**values)

    def close(self) -> None:
        """Give the driver's samples back."""
        for sample in (self._before, self._now):
            try:
                self._nvml.nvmlGpmSampleFree(sample)
            except self._nvml.NVMLError:
                # The driver went away with its samples: nothing is left to give back.
                return


def _fraction(percent: float) -> float | None:
    """0..100 → 0..1. NaN and nonsense are missing; a little above 100 is rounding."""
    return min(percent / 100, 1.0) if 0 <= percent <= 110 else None


def _bytes_per_s(mib_per_s: float) -> int | None:
    value = mib_per_s * MIB
    return int(value) if 0 <= value <= MAX_BYTES_PER_S else None
