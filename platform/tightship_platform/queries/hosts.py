"""Hosts, their devices, what their sources can see, and which machine a run had."""

from __future__ import annotations

from collections import Counter
from typing import Any

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.orm import Session, selectinload

from tightship_platform.database import models
from tightship_platform.queries.filtered import among_runs, checked_state, in_fleet, with_rule, within, without
from tightship_platform.queries.runs import checked_limit, find_run
from tightship_platform.results.codec import decode
from tightship_platform.results.filters import ALL, Filters
from tightship_platform.results.host import Host, HostDevice, Machine
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import HostState
from tightship_platform.wire import SourceState

HOSTS_AT_ONCE = 200
"""Hosts of a page, where nothing else is asked for."""
ALIVE_NS = 30 * NS_PER_S
"""A host that was heard of within this time is alive: several heartbeats."""


def list_hosts(
    session: Session,
    filters: Filters = ALL,
    *,
    after: str | None = None,
    limit: int = HOSTS_AT_ONCE,
    now: int | None = None,
) -> list[Host]:
    """Hosts by name, without those that were forgotten because of their age.

    Times are when they were last heard of. What else is said is of runs that were launched on them.

    :param after: those that come after this name: the last one of the page before.
    :raises Invalid: no such state, or a limit out of range.
    """
    now = now_ns() if now is None else now
    state = checked_state(filters, HostState)
    wanted = select(models.Host).options(selectinload(models.Host.devices)).order_by(models.Host.name)
    wanted = wanted.where(not_forgotten(), in_fleet(session, filters, models.Host.fleet_id))
    of_runs = among_runs(session, without(filters, "host"), models.Host.name, models.Run.host_name, *with_rule(filters))
    wanted = wanted.where(*of_runs, *within(filters, models.Host.last_seen_ns))
    if filters.host is not None:
        wanted = wanted.where(models.Host.name == filters.host)
    if state is not None:
        is_alive = models.Host.last_seen_ns >= now - ALIVE_NS
        wanted = wanted.where(is_alive if state == HostState.ALIVE else ~is_alive)
    if after is not None:
        wanted = wanted.where(models.Host.name > after)
    return [_host(found, now) for found in session.scalars(wanted.limit(checked_limit(limit)))]


def not_forgotten() -> ColumnElement[bool]:
    """Hosts that were not forgotten because of their age, or were heard of since: they need not say so themselves."""
    return or_(models.Host.forgotten_ns.is_(None), models.Host.forgotten_ns < models.Host.last_seen_ns)


def machine_of(session: Session, run: str) -> Machine | None:
    """The host that a run held most devices of, and one of them; None where no device was seen.

    :raises NotFound: no such run.
    """
    held_ids = select(models.Allocation.device_id).where(models.Allocation.run_id == find_run(session, run).id)
    rows = session.execute(
        select(models.Device, models.Host)
        .join(models.Host, models.Host.id == models.Device.host_id)
        .where(models.Device.id.in_(held_ids))
        .order_by(models.Host.name, models.Device.uuid)
    ).all()
    if not rows:
        return None
    held = Counter(host.id for _, host in rows)
    device, host = next((device, host) for device, host in rows if held[host.id] == max(held.values()))
    return Machine(
        host=host.name,
        devices=held[host.id],
        kind=device.kind,
        device=device.name,
        device_bytes=device.memory_bytes,
        host_bytes=_count(host.info.get("memory_bytes")),
        cores=_count(host.info.get("cpus")),
    )


def _host(host: models.Host, now: int) -> Host:
    return Host(
        host=host.name,
        alive=host.last_seen_ns >= now - ALIVE_NS,
        first_seen_ns=host.first_seen_ns,
        last_seen_ns=host.last_seen_ns,
        agent_version=host.agent_version,
        info=host.info,
        sources=decode(list[SourceState], host.sources, f"Sources of host {host.name}"),
        devices=[
            HostDevice(
                host=host.name,
                uuid=device.uuid,
                kind=device.kind,
                name=device.name,
                memory_bytes=device.memory_bytes,
            )
            for device in sorted(host.devices, key=lambda device: device.uuid)
        ],
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
