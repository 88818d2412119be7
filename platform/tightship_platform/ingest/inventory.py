"""Hosts and devices as records name them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from sqlalchemy import Row, select
from sqlalchemy.orm import Session

from tightship_platform import validation
from tightship_platform.database.models import Device
from tightship_platform.database.upsert import add_missing, put
from tightship_platform.errors import Invalid
from tightship_platform.vocabulary import DeviceKind
from tightship_platform.wire import DeviceRecord

MAX_DEVICES = 1024
"""Devices of one host, MIG slices included."""


def checked_devices(devices: list[DeviceRecord]) -> list[DeviceRecord]:
    """Refuse device records that cannot be; the last record of a UUID counts.

    :raises Invalid: too many, or a value is not acceptable.
    """
    if len(devices) > MAX_DEVICES:
        raise Invalid("Devices of one host", len(devices), f"at most {MAX_DEVICES}")
    return list({device.uuid: check_device(device) for device in devices}.values())


def check_device(device: DeviceRecord) -> DeviceRecord:
    """The record itself.

    :raises Invalid: a value is not acceptable.
    """
    validation.name("Device uuid", device.uuid)
    validation.name("Device name", device.name)
    if device.kind not in list(DeviceKind):
        raise Invalid("Device kind", device.kind, f"one of {', '.join(DeviceKind)}")
    if device.memory_bytes is not None:
        validation.count("Device memory_bytes", device.memory_bytes)
    return device


def put_devices(
    session: Session, host_id: int, devices: list[DeviceRecord], mentioned: Iterable[str]
) -> dict[str, int]:
    """Ids of the host's devices by UUID. Devices that are only mentioned, never described, are made with what is known.

    :param devices: as `checked_devices` returned them.
    :param mentioned: UUIDs that samples and allocations name.
    """
    present = devices_of(session, [host_id])[host_id]
    described = {device.uuid for device in devices}
    bare = sorted({validation.name("Device uuid", uuid) for uuid in mentioned} - described - set(present))
    if len(bare) + len(present) > MAX_DEVICES:
        raise Invalid("Devices of one host", len(bare) + len(present), f"at most {MAX_DEVICES}")
    add_missing(
        session,
        Device,
        [{"host_id": host_id, "uuid": uuid, "kind": _kind(uuid), "name": uuid, "memory_bytes": None} for uuid in bare],
    )
    if not describe_devices(session, {host_id: devices}, {host_id: present}) and not bare:
        return {uuid: row.id for uuid, row in present.items()}
    # Whole, so that what this session has read of them before is out of date nowhere.
    now_there = select(Device).where(Device.host_id == host_id).execution_options(populate_existing=True)
    return {device.uuid: device.id for device in session.scalars(now_there)}


Present = dict[str, Row[int, str, int, str, str, int | None]]
"""Devices of a host by UUID."""


def devices_of(session: Session, host_ids: Collection[int]) -> dict[int, Present]:
    """Their devices as they are now."""
    columns = select(Device.host_id, Device.uuid, Device.id, Device.kind, Device.name, Device.memory_bytes)
    found: dict[int, Present] = {host_id: {} for host_id in host_ids}
    for row in session.execute(columns.where(Device.host_id.in_(host_ids))):
        found[row.host_id][row.uuid] = row
    return found


def describe_devices(
    session: Session, described: Mapping[int, Sequence[DeviceRecord]], present: Mapping[int, Present]
) -> bool:
    """Store devices of hosts as they are described; whether any was not there like that.

    :param present: as `devices_of` returned them.
    """
    changed = [
        {
            "host_id": host_id,
            "uuid": device.uuid,
            "kind": device.kind,
            "name": device.name,
            "memory_bytes": device.memory_bytes,
        }
        for host_id, devices in sorted(described.items())
        for device in sorted({device.uuid: device for device in devices}.values(), key=lambda device: device.uuid)
        if (old := present[host_id].get(device.uuid)) is None
        or (old.kind, old.name, old.memory_bytes) != (device.kind, device.name, device.memory_bytes)
    ]
    put(session, Device, changed, key=("host_id", "uuid"), update=("kind", "name", "memory_bytes"))
    return bool(changed)


def _kind(uuid: str) -> str:
    return DeviceKind.CPU.value if uuid == "cpu" else DeviceKind.GPU.value
