"""Metrics of devices that came by a standard, not from an agent: stored where an agent's samples are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform.database.models import Device, Host, Sample
from tightship_platform.database.reporters import Reporter, put_measured_host
from tightship_platform.database.upsert import Row, fill_samples
from tightship_platform.ingest.batches import kept, mark_late
from tightship_platform.ingest.inventory import put_devices
from tightship_platform.ingest.standards.places import Place
from tightship_platform.vocabulary import DeviceKind
from tightship_platform.wire import DeviceRecord, DeviceSample

Instants = dict[int, dict[str, float | int]]
"""UTC nanoseconds → metric → value."""
_METRICS = tuple(one.name for one in fields(DeviceSample) if one.name not in ("time_ns", "device"))
_AT_ONCE = 10_000


@dataclass(kw_only=True)
class MeasuredHost:
    """What came of the devices of one host."""

    name: str
    devices: dict[str, Instants] = field(default_factory=dict)
    """By UUID."""
    models: dict[str, str] = field(default_factory=dict)
    """UUID → name, where it is known."""

    @property
    def values(self) -> int:
        """How many they are."""
        return sum(len(row) for instants in self.devices.values() for row in instants.values())


def find_devices(session: Session, places: Iterable[Place]) -> dict[Place, tuple[str, str] | str]:
    """Place → host and UUID of its device, or why it has none.

    A device that an agent reports is where that agent says, whatever host a label names. One of which only its number
    is known is the only device of its host, or `gpu` and the number on a host of which no other is known.
    """
    places = list(places)
    reported = _hosts_with_agent(session, sorted({place.uuid for place in places if place.uuid is not None}))
    known = _devices_of(session, sorted({place.host for place in places if place.uuid is None}))
    found: dict[Place, tuple[str, str] | str] = {}
    for place in places:
        if place.uuid is not None:
            hosts = reported.get(place.uuid, set())
            host = place.host if place.host in hosts or len(hosts) != 1 else next(iter(hosts))
            found[place] = host, place.uuid
            continue
        named, uuids = f"gpu{place.index}", known.get(place.host, set())
        if not uuids or named in uuids:
            found[place] = place.host, named
        elif len(uuids) == 1:
            found[place] = place.host, next(iter(uuids))
        else:
            found[place] = (
                f"Device {place.index} of host {place.host!r} is named by its number alone, and the host has "
                f"{len(uuids)}; add a label with its UUID"
            )
    return found


def apply_measured(
    session: Session, host: MeasuredHost, *, reporter: Reporter, keep_days: int, now: int
) -> tuple[int, int]:
    """Store what came of a host. Sent again, it changes nothing; what is stored already stays.

    :returns: how many values were stored, and how many were too old to be: see `apply_batch`.
    :raises Forbidden: see [Note: whose metrics] in `database.reporters`.
    :raises Invalid: too many devices.
    """
    times = sorted({time_ns for instants in host.devices.values() for time_ns in instants})
    host_id = put_measured_host(session, host.name, min(times[-1], now), reporter)
    is_kept = kept(session, times, keep_days, now)
    present = set(session.scalars(select(Device.uuid).where(Device.host_id == host_id)))
    described = [
        DeviceRecord(uuid=uuid, kind=DeviceKind.GPU.value, name=host.models[uuid])
        for uuid in host.devices
        if uuid in host.models and uuid not in present
    ]
    device_ids = put_devices(session, host_id, described, host.devices)
    rows: list[Row] = [
        {"time_ns": time_ns, "device_id": device_ids[uuid], **dict.fromkeys(_METRICS), **row}
        for uuid, instants in host.devices.items()
        for time_ns, row in instants.items()
        if is_kept(time_ns)
    ]
    rows.sort(key=lambda row: (row["time_ns"], row["device_id"]))
    fill_samples(session, Sample, rows)
    mark_late(session, rows, now)
    stored = sum(row[name] is not None for row in rows for name in _METRICS)
    return stored, host.values - stored


def _hosts_with_agent(session: Session, uuids: list[str]) -> dict[str, set[str]]:
    """UUID → hosts whose agents report it."""
    found: dict[str, set[str]] = {}
    for first in range(0, len(uuids), _AT_ONCE):
        wanted = select(Device.uuid, Host.name).join(Host).where(Device.uuid.in_(uuids[first : first + _AT_ONCE]))
        for row in session.execute(wanted.where(Host.agent_version.is_not(None))):
            found.setdefault(row.uuid, set()).add(row.name)
    return found


def _devices_of(session: Session, hosts: list[str]) -> dict[str, set[str]]:
    """Host → UUIDs of its accelerators."""
    found: dict[str, set[str]] = {}
    for first in range(0, len(hosts), _AT_ONCE):
        wanted = select(Device.uuid, Host.name).join(Host).where(Host.name.in_(hosts[first : first + _AT_ONCE]))
        for row in session.execute(wanted.where(Device.kind == DeviceKind.GPU.value)):
            found.setdefault(row.name, set()).add(row.uuid)
    return found


def by_host(
    rows: dict[Place, Instants], devices: dict[Place, tuple[str, str] | str]
) -> tuple[list[MeasuredHost], dict[Place, str]]:
    """What was measured, by host; and the places without a device, each with why."""
    hosts: dict[str, MeasuredHost] = {}
    lost: dict[Place, str] = {}
    for place, instants in rows.items():
        device = devices[place]
        if isinstance(device, str):
            lost[place] = device
            continue
        name, uuid = device
        host = hosts.setdefault(name, MeasuredHost(name=name))
        if place.model is not None:
            host.models.setdefault(uuid, place.model)
        merged = host.devices.setdefault(uuid, {})
        for time_ns, row in instants.items():
            merged[time_ns] = row | merged.get(time_ns, {})
    return list(hosts.values()), lost
