"""One measured value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from urllib.parse import quote, unquote

from tightship_platform.errors import Invalid
from tightship_platform.validation import INT64_MAX
from tightship_platform.wire import DeviceSample, HostSampleRecord, RunSampleRecord

OF_HOST, OF_RUN = "host_", "run_"
_NAMED = ("time_ns", "device", "run")


def _figures(record: type, prefix: str = "") -> tuple[str, ...]:
    return tuple(prefix + field.name for field in fields(record) if field.name not in _NAMED)


DEVICE_METRICS = _figures(DeviceSample)
"""Of a device, whoever uses it."""
HOST_METRICS = _figures(HostSampleRecord, OF_HOST)
"""Of a host: what the agent calls `cpu_frac` is `host_cpu_frac` here."""
RUN_METRICS = _figures(RunSampleRecord, OF_RUN)
"""Of a run's own processes on a device: `run_util_frac` is their share of it."""
METRICS = DEVICE_METRICS + HOST_METRICS + RUN_METRICS


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A metric of a device, a host or a run at one instant."""

    time_ns: int
    """When it was measured."""
    host: str
    """The host."""
    device: str | None
    """UUID of the device; null: it is the host's."""
    run: str | None
    """Of `run_…`, whose it is; else the run that held the device then. Null: none did, or several."""
    metric: str
    """Its name, which ends with the unit."""
    value: float | int
    """In the unit of the name."""


def checked_metrics(names: Sequence[str]) -> frozenset[str]:
    """The metrics that are asked for; all where none is named.

    :raises Invalid: there is no such metric.
    """
    unknown = next((name for name in names if name not in METRICS), None)
    if unknown is not None:
        raise Invalid("metric", unknown, f"one of {', '.join(METRICS)}")
    return frozenset(names or METRICS)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a page of samples begins: after the one with these fields."""

    time_ns: int
    host: str
    device: str | None
    run: str | None
    metric: str


def place_of(sample: Sample) -> str:
    """The place after a sample, as `--after` and the API take it: its fields but the value, with slashes between."""
    parts = (str(sample.time_ns), sample.host, sample.device or "", sample.run or "", sample.metric)
    return "/".join(quote(part, safe="") for part in parts)


def read_place(text: str) -> Place:
    """What `place_of` has written.

    :raises Invalid: it is no such text.
    """
    parts = [unquote(part) for part in text.split("/")]
    is_time = parts[0].isdecimal() and len(parts[0]) <= 19 and int(parts[0]) <= INT64_MAX
    if len(parts) != 5 or not is_time or parts[4] not in METRICS:
        raise Invalid("after", text, "TIME_NS/HOST/DEVICE/RUN/METRIC of a sample, empty where that has null")
    return Place(time_ns=int(parts[0]), host=parts[1], device=parts[2] or None, run=parts[3] or None, metric=parts[4])
