"""What the metrics of others are in ours: the one table of names, units and missing values.

DCGM: https://docs.nvidia.com/datacenter/dcgm/latest/dcgm-api/dcgm-api-field-ids.html, as dcgm-exporter writes them.
OpenTelemetry: https://opentelemetry.io/docs/specs/semconv/hardware/gpu/, also by the names that Prometheus gives them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from tightship_platform.ingest.bounds import bounds_of, check_of
from tightship_platform.validation import COUNT_MAX
from tightship_platform.wire import DeviceSample

MIB = 1024**2
MHZ = 10**6
_BLANK_INT = float(0x7FFFFFFFFFFFFFF0)
"""DCGM: this and all above say why an integer is missing. The double next to it is 2**63."""
_BLANK_FLOAT = 2.0**47
"""DCGM: this and the next few say why a floating-point number is missing."""
_BLANKS = 16


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One of our metrics, as somebody else has it."""

    metric: str
    """A column of `DeviceSample`, which names its unit."""
    factor: int = 1
    divisor: int = 1
    """Theirs × factor ÷ divisor is ours, to the last digit: 41 % is 0.41."""
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Label → what it must be where it is there; otherwise the value is about something else."""


_TASK = {"hw_gpu_task": ("general",), "hw_type": ("gpu",)}
_OF_GPU = {"hw_type": ("gpu",)}

FIGURES: dict[str, Figure] = {
    "DCGM_FI_DEV_GPU_UTIL": Figure(metric="util_frac", divisor=100),
    "DCGM_FI_DEV_FB_USED": Figure(metric="memory_used_bytes", factor=MIB),
    "DCGM_FI_DEV_POWER_USAGE": Figure(metric="power_w"),
    "DCGM_FI_DEV_GPU_TEMP": Figure(metric="temperature_c"),
    "DCGM_FI_DEV_SM_CLOCK": Figure(metric="clock_hz", factor=MHZ),
    "DCGM_FI_PROF_SM_ACTIVE": Figure(metric="sm_active_frac"),
    "DCGM_FI_PROF_SM_OCCUPANCY": Figure(metric="sm_occupancy_frac"),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": Figure(metric="tensor_active_frac"),
    "DCGM_FI_PROF_DRAM_ACTIVE": Figure(metric="dram_active_frac"),
    # Bytes per second, though some lists of dcgm-exporter call them counters.
    "DCGM_FI_PROF_PCIE_RX_BYTES": Figure(metric="pcie_rx_bytes_per_s"),
    "DCGM_FI_PROF_PCIE_TX_BYTES": Figure(metric="pcie_tx_bytes_per_s"),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": Figure(metric="nvlink_rx_bytes_per_s"),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": Figure(metric="nvlink_tx_bytes_per_s"),
    "hw.gpu.utilization": Figure(metric="util_frac", labels=_TASK),
    "hw_gpu_utilization_ratio": Figure(metric="util_frac", labels=_TASK),
    "hw.gpu.memory.usage": Figure(metric="memory_used_bytes", labels=_OF_GPU),
    "hw_gpu_memory_usage_bytes": Figure(metric="memory_used_bytes", labels=_OF_GPU),
}
"""Their name → ours. What is not here is counted and not stored."""

_UNKNOWN = {one.metric for one in FIGURES.values()} - {one.name for one in fields(DeviceSample)}
if _UNKNOWN:
    raise TypeError(f"No column of a sample: {_UNKNOWN}")


def figure_of(name: str, labels: Mapping[str, str]) -> Figure | None:
    """What a series is of ours; None: nothing.

    :param labels: with `_` for `.` in their names.
    """
    figure = FIGURES.get(name)
    if figure is None or any(labels.get(label, allowed[0]) not in allowed for label, allowed in figure.labels.items()):
        return None
    return figure


def is_missing(value: float) -> bool:
    """Whether a value only says that there is none: NaN (and with it Prometheus's mark of a series that ended), or one
    of DCGM's."""
    return value != value or value >= _BLANK_INT or _BLANK_FLOAT <= value < _BLANK_FLOAT + _BLANKS


def in_our_unit(figure: Figure, value: float) -> float | int:
    """Their value in our unit.

    :raises Invalid: it cannot be.
    """
    ours = value * figure.factor / figure.divisor
    is_whole = bounds_of(figure.metric).is_whole and abs(ours) <= COUNT_MAX
    checked: float | int = check_of(figure.metric)(round(ours) if is_whole else ours)
    return checked
