"""One run over time: series of values, each the mean of a slice that starts at the time beside it."""

from __future__ import annotations

from dataclasses import dataclass

from tightship_platform.results.host import HostDevice

Values = list[float | None]
"""One value per time; null: nothing was measured in that slice."""
Counts = list[int | None]
"""As `Values`, in whole numbers."""


@dataclass(frozen=True, kw_only=True)
class DeviceSeries(HostDevice):
    """What a device did while the run held it, whoever used it."""

    time_ns: list[int]
    """Starts of the slices."""
    util_frac: Values
    """Share of the time in which something ran."""
    sm_active_frac: Values
    """Share of multiprocessors at work."""
    sm_occupancy_frac: Values
    """Share of warps that multiprocessors held."""
    tensor_active_frac: Values
    """Share of the time in which tensor cores worked."""
    dram_active_frac: Values
    """Share of the time in which device memory was read or written."""
    memory_used_bytes: Counts
    """Device memory in use."""
    power_w: Values
    """Power draw in watts."""
    temperature_c: Values
    """Temperature in degrees Celsius."""
    clock_hz: Counts
    """Clock of the multiprocessors."""
    pcie_rx_bytes_per_s: Counts
    """Received over PCIe."""
    pcie_tx_bytes_per_s: Counts
    """Sent over PCIe."""
    nvlink_rx_bytes_per_s: Counts
    """Received over NVLink."""
    nvlink_tx_bytes_per_s: Counts
    """Sent over NVLink."""


@dataclass(frozen=True, kw_only=True)
class RunSeries:
    """What the run itself used of a device and its host."""

    device: str
    """UUID of the device."""
    host: str
    """Host of the device."""
    time_ns: list[int]
    """Starts of the slices."""
    util_frac: Values
    """Share of the time in which the run's work ran on the device."""
    memory_used_bytes: Counts
    """Device memory of the run's processes."""
    cpu_cores: Values
    """Cores of the host that the run's processes kept busy."""


@dataclass(frozen=True, kw_only=True)
class StepSeries:
    """Steps per second of a rank."""

    rank: int
    """The rank."""
    time_ns: list[int]
    """Starts of the slices."""
    steps_per_s: list[float]
    """Optimizer steps per second; 0 between two slices with steps: none was made."""


@dataclass(frozen=True, kw_only=True)
class CaptureSpan:
    """When a trace of the run was recorded."""

    capture: str
    """Id of the capture."""
    state: str
    """State of the capture."""
    requested_ns: int
    """When it was requested."""
    start_ns: int | None
    """Start of the recording; null: it never began."""
    end_ns: int | None
    """End of the recording; null: it goes on, or never began."""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A run from its start to its end, or to the last sign of life."""

    run: str
    """Id of the run."""
    start_ns: int
    """Start of the run."""
    end_ns: int
    """End of the run, or the last sign of life."""
    width_ns: int
    """Width of a slice."""
    devices: list[DeviceSeries]
    """One per device that the run held."""
    run_samples: list[RunSeries]
    """One per device that the run held."""
    steps: list[StepSeries]
    """One per rank that counted steps."""
    captures: list[CaptureSpan]
    """Captures of the run, the oldest first."""
