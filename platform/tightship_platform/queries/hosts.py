"""Hosts, their devices, what their sources can see, and which machine a run had."""

from __future__ import annotations

from collections import Counter
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from tightship_platform.database.models import Allocation, Device, Host
from tightship_platform.queries.runs import find_run
from tightship_platform.units import NS_PER_S, now_ns

ALIVE_NS = 30 * NS_PER_S
"""A host that was heard of within this time is alive: several heartbeats."""


def list_hosts(session: Session, *, now: int | None = None) -> list[dict[str, Any]]:
    """All hosts by name."""
    now = now_ns() if now is None else now
    hosts = session.scalars(select(Host).options(selectinload(Host.devices)).order_by(Host.name))
    return [
        {
            "host": host.name,
            "alive": host.last_seen_ns >= now - ALIVE_NS,
            "first_seen_ns": host.first_seen_ns,
            "last_seen_ns": host.last_seen_ns,
            "agent_version": host.agent_version,
            "info": host.info,
            "sources": host.sources,
            "devices": [
                {
                    "host": host.name,
                    "uuid": device.uuid,
                    "kind": device.kind,
                    "name": device.name,
                    "memory_bytes": device.memory_bytes,
                }
                for device in sorted(host.devices, key=lambda device: device.uuid)
            ],
        }
        for host in hosts
    ]


def machine_of(session: Session, run: str) -> dict[str, Any] | None:
    """The host that a run held most devices of, and one of them; None where no device was seen.

    Keys: host, devices (held there), kind, device, device_bytes, host_bytes, cores; null what no agent told.

    :raises NotFound: no such run.
    """
    rows = session.execute(
        select(Device, Host)
        .join(Host, Host.id == Device.host_id)
        .where(Device.id.in_(select(Allocation.device_id).where(Allocation.run_id == find_run(session, run).id)))
        .order_by(Host.name, Device.uuid)
    ).all()
    if not rows:
        return None
    held = Counter(host.id for _, host in rows)
    device, host = next((device, host) for device, host in rows if held[host.id] == max(held.values()))
    return {
        "host": host.name,
        "devices": held[host.id],
        "kind": device.kind,
        "device": device.name,
        "device_bytes": device.memory_bytes,
        "host_bytes": _count(host.info.get("memory_bytes")),
        "cores": _count(host.info.get("cpus")),
    }


def _count(told: Any) -> int | None:
    return told if isinstance(told, int) and not isinstance(told, bool) and told > 0 else None
