"""Hosts and their devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tightship_platform.wire import SourceState


@dataclass(frozen=True, kw_only=True)
class Device:
    """An accelerator, a MIG slice, or the processor of a host that has neither."""

    host: str
    """Host that it is in."""
    uuid: str
    """The vendor's UUID, or `cpu`."""
    kind: str
    """`gpu`, `mig` or `cpu`."""
    name: str
    """Its product name."""


@dataclass(frozen=True, kw_only=True)
class HostDevice(Device):
    """A device with its size."""

    memory_bytes: int | None
    """Its memory; null: nobody reported it."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine that an agent reports from."""

    host: str
    """Its name."""
    alive: bool
    """Its agent was heard of within the last 30 seconds."""
    first_seen_ns: int
    """The first record of its agent."""
    last_seen_ns: int
    """The last record of its agent."""
    agent_version: str | None
    """Release of its agent; null: no heartbeat has come yet."""
    info: dict[str, str | int | float]
    """System facts as the agent reports them, such as `cpus`, `memory_bytes` and `kernel`."""
    sources: list[SourceState]
    """What each source of metrics can see there."""
    devices: list[HostDevice]
    """Its devices, by UUID."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The host that a run held most devices of, and one of these."""

    host: str
    """Its name."""
    devices: int
    """Devices of it that the run held."""
    kind: str
    """Kind of the device: `gpu`, `mig` or `cpu`."""
    device: str
    """Product name of the device."""
    device_bytes: int | None
    """Memory of the device; null: nobody reported it."""
    host_bytes: int | None
    """Memory of the host; null: nobody reported it."""
    cores: int | None
    """Cores of the host; null: nobody reported them."""


def count_devices(devices: Iterable[Device]) -> str:
    """'8 × NVIDIA H100 80GB HBM3', or the kinds counted where they differ; empty: there is none."""
    kinds = Counter(device.name or device.kind for device in devices)
    return ", ".join(f"{number} × {kind}" if number > 1 else kind for kind, number in kinds.items())
