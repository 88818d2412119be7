"""Hosts that this process does not know, and what hosts say that is new: many of them stored with few statements.

[Note: many at once]
A fleet that begins, or whose server was restarted, sends its first heartbeats and batches all at once. One by one each
takes more than a dozen statements; here all of a group share them. What is stored is what the long way stores
(`apply_heartbeat`, `apply_batch`). Here, too, whatever needs a second look is left out, has changed nothing and goes
the long way: a host that is another token's or may become this one's, a run that nobody announced or that has ended.

Only rows that are new are waited for, of hosts in the order of their names, with nothing else held. See also
[Note: nobody waits for a neighbour] in `quick`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from tightship_platform import validation
from tightship_platform.database.locks import begin_writing, locked
from tightship_platform.database.models import Host, RemovedRun, Run, Token
from tightship_platform.database.reporters import HOSTS_PER_TOKEN, Reporter
from tightship_platform.database.upsert import Row, add_missing
from tightship_platform.errors import Invalid
from tightship_platform.ingest import quick
from tightship_platform.ingest.allocations import apply_allocations, hold_now
from tightship_platform.ingest.batches import check_allocation, reported
from tightship_platform.ingest.heartbeats import check_heartbeat, is_stored_as_it_is, note_ranks, shown
from tightship_platform.ingest.inventory import MAX_DEVICES, checked_devices, describe_devices, devices_of
from tightship_platform.ingest.known import KnownHost, KnownRun
from tightship_platform.ingest.plain import described, stated_of_host, stated_of_run
from tightship_platform.ingest.quick import Delivery
from tightship_platform.vocabulary import RunState
from tightship_platform.wire import Batch, Heartbeat

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Prepare = Callable[[Any, KnownHost, int], Delivery | None]
"""`quick.plain_heartbeat` or `quick.plain_batch`."""


@dataclass(kw_only=True, eq=False)
class Arrival:
    """A heartbeat or batch that says something new. Make one with `arrival_of`."""

    said: Heartbeat | Batch
    reporter: Reporter
    prepare: Prepare
    now: int
    stated: KnownHost
    """What it says, with ids that mean nothing yet."""
    seen_ns: int
    """When its host was seen."""
    delivery: Delivery = field(init=False)
    """As it was stored; its host is known once it is committed."""


def arrival_of(said: Heartbeat | Batch, reporter: Reporter, prepare: Prepare, now: int) -> Arrival | None:
    """What `plain` has read, fit to be stored with others; None: it has to go the long way.

    :param prepare: makes a delivery of it.
    """
    try:
        stated = _stated(said, now)
    except Invalid:
        return None
    if stated is None or (reporter.host not in (None, said.host) and not reporter.is_admin):
        return None
    planned = prepare(said, stated, now)
    if planned is None:
        return None
    return Arrival(said=said, reporter=reporter, prepare=prepare, now=now, stated=stated, seen_ns=planned.seen_ns)


def _stated(said: Heartbeat | Batch, now: int) -> KnownHost | None:
    validation.name("Host", said.host)
    if len(checked_devices(said.devices)) < len(said.devices):
        return None
    stated = KnownHost(
        name=said.host,
        host_id=0,
        device_ids={one.uuid: number for number, one in enumerate(said.devices)},
        devices=described(said.devices),
    )
    if _is_heartbeat(said):
        info, sources = check_heartbeat(said, now)
        if not is_stored_as_it_is(said, info, sources):
            return None
        if not all(uuid in stated.device_ids for live in said.runs for uuid in live.devices):
            return None
        stated.stated, stated.info = stated_of_host(said), said.info
        keys = [live.run for live in said.runs]
        stated.runs = {live.run: KnownRun(run_id=n, stated=stated_of_run(live)) for n, live in enumerate(said.runs)}
    else:
        keys = sorted({one.run for part in (said.run_samples, said.steps, said.allocations) for one in part})
        stated.runs = {validation.key("Run", key): KnownRun(run_id=number) for number, key in enumerate(keys)}
        for held in said.allocations:
            check_allocation(held, now)
            if held.device not in stated.device_ids:
                return None
            stated.runs[held.run].held.add((held.device, held.start_ns))
    return stated if len(set(keys)) == len(keys) else None


def _is_heartbeat(said: Heartbeat | Batch) -> TypeIs[Heartbeat]:
    # By what it has: both are read by types made of the wire's.
    return hasattr(said, "agent_version")


def store(session: Session, arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Store what can be stored at once; returns it, with its `delivery`. The others have to go the long way, and have
    changed nothing."""
    begin_writing(session)
    arrivals = list({one.said.host: one for one in reversed(arrivals)}.values())  # the first of each host
    arrivals = _with_runs(session, arrivals)
    hosts = _hosts(session, arrivals)
    arrivals = [one for one in arrivals if one.said.host in hosts]
    runs = _runs(session, arrivals)
    arrivals = [one for one in arrivals if all(_run_of(runs, key, one) for key in one.stated.runs)]
    present = devices_of(session, [hosts[one.said.host].id for one in arrivals])
    arrivals = [
        one for one in arrivals if len({*present[hosts[one.said.host].id], *one.stated.device_ids}) <= MAX_DEVICES
    ]
    if not arrivals:
        return []
    of_hosts = {hosts[one.said.host].id: one.said.devices for one in arrivals}
    if describe_devices(session, of_hosts, present):
        present = devices_of(session, of_hosts)
    for one in arrivals:
        host_id = hosts[one.said.host].id
        device_ids = {uuid: row.id for uuid, row in present[host_id].items()}
        known = replace(one.stated, host_id=host_id, device_ids=device_ids)
        known.runs = {key: replace(run, run_id=runs[key].id) for key, run in one.stated.runs.items()}
        delivery = one.prepare(one.said, known, one.now)
        assert delivery is not None  # as with the ids that meant nothing
        one.delivery = delivery
    _tell(session, arrivals, hosts, runs)
    uncounted = {run.id for run in runs.values() if run.steps is None}
    session.flush()
    quick.write(session, [one.delivery for one in arrivals], uncounted)
    return arrivals


def _with_runs(session: Session, arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Those whose runs were all announced, and live on their host."""
    keys = {key for one in arrivals for key in one.stated.runs}
    if not keys:
        return list(arrivals)
    found = {run.key: run for run in session.execute(select(Run.key, Run.host_name).where(Run.key.in_(keys), *_ALIVE))}
    for key in session.scalars(select(RemovedRun.key).where(RemovedRun.key.in_(keys))):
        found.pop(key, None)
    return [
        one
        for one in arrivals
        if all(key in found and found[key].host_name == one.said.host for key in one.stated.runs)
    ]


_ALIVE = Run.end_ns.is_(None), Run.state == RunState.RUNNING.value, Run.source != "agent"


def _hosts(session: Session, arrivals: Sequence[Arrival]) -> dict[str, Host]:
    """Hosts that are their reporters', by name, locked; made where they are new. Those that somebody else holds are
    missing."""
    by_name = {one.said.host: one for one in arrivals}
    there = set(session.scalars(select(Host.name).where(Host.name.in_(by_name))))
    new = _that_may_be_new(session, [one for name, one in sorted(by_name.items()) if name not in there])
    rows: list[Row] = [
        {
            "name": one.said.host,
            "first_seen_ns": one.seen_ns,
            "last_seen_ns": one.seen_ns,
            "info": {},
            "sources": [],
            "reported_by": _owner(one.reporter),
        }
        for one in new
    ]
    add_missing(session, Host, rows)
    wanted = [*there, *(one.said.host for one in new)]
    found = locked(session, select(Host).where(Host.name.in_(wanted)).order_by(Host.id), skip_locked=True)
    return {host.name: host for host in found if _is_theirs(host, by_name[host.name].reporter)}


def _owner(reporter: Reporter) -> str | None:
    return None if reporter.is_admin else reporter.name


def _is_theirs(host: Host, reporter: Reporter) -> bool:
    return host.fleet_id is None and (reporter.is_admin or host.reported_by == reporter.name)


def _that_may_be_new(session: Session, arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Those whose hosts, which are not there, may become their reporters'."""
    claimed = [one for one in arrivals if not one.reporter.is_admin and one.reporter.host is None]
    if not claimed:
        return list(arrivals)
    active = Token.revoked_ns.is_(None), or_(Token.expires_ns.is_(None), Token.expires_ns > claimed[0].now)
    of_others = select(Token.host_name).where(Token.host_name.in_([one.said.host for one in claimed]), *active)
    taken = set(session.scalars(of_others))
    reporters = {one.reporter.name for one in claimed}
    counts = select(Host.reported_by, func.count()).where(Host.reported_by.in_(reporters)).group_by(Host.reported_by)
    counted = Counter({row[0]: row[1] for row in session.execute(counts)})
    counted.update(one.reporter.name for one in claimed)
    refused = {
        one.said.host for one in claimed if one.said.host in taken or counted[one.reporter.name] > HOSTS_PER_TOKEN
    }
    return [one for one in arrivals if one.said.host not in refused]


def _runs(session: Session, arrivals: Sequence[Arrival]) -> dict[str, Run]:
    """Their runs that live and that nobody else holds, by key, locked."""
    keys = {key for one in arrivals for key in one.stated.runs}
    if not keys:
        return {}
    wanted = select(Run).where(Run.key.in_(keys), *_ALIVE).order_by(Run.id)
    return {run.key: run for run in locked(session, wanted, skip_locked=True)}


def _run_of(runs: Mapping[str, Run], key: str, arrival: Arrival) -> bool:
    return key in runs and runs[key].host_name == arrival.said.host


def _tell(session: Session, arrivals: Collection[Arrival], hosts: Mapping[str, Host], runs: Mapping[str, Run]) -> None:
    """Write down what only first deliveries say: hosts in words, ranks of runs, and which devices they hold."""
    holds, records = [], []
    for one in arrivals:
        said, device_ids = one.said, one.delivery.known.device_ids
        if not _is_heartbeat(said):
            records += reported(said.allocations, runs, device_ids)
            continue
        host = hosts[said.host]
        host.agent_version, host.info = said.agent_version, said.info
        host.sources = [
            {"name": source.name, "state": source.state, "detail": source.detail} for source in said.sources
        ]
        alive = [(runs[live.run], live) for live in said.runs]
        for run, live in alive:
            note_ranks(run, live, said.host)
        holds += shown(alive, device_ids, said.time_ns)
    now = max(one.now for one in arrivals)
    apply_allocations(session, records, now)
    hold_now(session, holds, now)
