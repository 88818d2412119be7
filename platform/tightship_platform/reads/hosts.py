"""Hosts, their devices, and what their sources can see."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from tightship_platform.models import Host
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
