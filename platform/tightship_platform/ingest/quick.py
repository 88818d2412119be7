"""The short way of heartbeats and batches: what nearly all of them are, many of them stored with few statements.

[Note: the short way]
A fleet that works sends the same again and again: the same devices, the same runs, new figures. Such bodies (`plain`)
are stored beside what this process knows of their hosts (`known`), those of many hosts in one transaction. Whatever is
not plain, be it a value that needs a second look, a device or run that is new, or a run that has ended, is left out of
it, leaves no trace, and goes the long way (`apply_heartbeat`, `apply_batch`), which refuses, explains and counts. Both
ways store the same rows.

[Note: nobody waits for a neighbour]
Hosts and runs are locked first, without waiting: what somebody else holds goes the long way, which waits alone. Every
way of storing a host's samples locks the host, so no two transactions store the same sample.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import Any

from sqlalchemy import bindparam, case, func, select, update
from sqlalchemy.orm import Session

from tightship_platform.database.locks import begin_writing
from tightship_platform.database.models import Host, HostSample, Run, RunSample, Sample
from tightship_platform.database.round_trips import read
from tightship_platform.database.upsert import add_together
from tightship_platform.ingest.known import KnownHost
from tightship_platform.ingest.plain import described, stated_of_host, stated_of_run, values_of
from tightship_platform.ingest.steps import put_new_steps
from tightship_platform.samples import dirty_hours
from tightship_platform.samples.dirty_hours import HOUR_NS
from tightship_platform.samples.retention import DAY_NS
from tightship_platform.samples.rollups import FRESH_NS
from tightship_platform.units import NS_PER_S
from tightship_platform.validation import COUNT_MAX
from tightship_platform.vocabulary import RunSource, RunState
from tightship_platform.wire import (
    Batch,
    BatchReceived,
    DeviceSample,
    Heartbeat,
    HeartbeatReceived,
    HostSampleRecord,
    RunSampleRecord,
    StepRecord,
)

SEEN_EVERY_NS = 10 * NS_PER_S
"""A batch writes when its host and runs were seen no more often than this: heartbeats do."""
MAX_ROWS = 2000
"""Rows of one body; a larger one goes the long way."""


@dataclass(kw_only=True, slots=True)
class _Sighting:
    """What a delivery says of one of its runs."""

    at_ns: int
    steps: int = -1
    """As a heartbeat counts them; -1: it does not say."""
    counts: bool = False
    """There are step counts of it, which have to be added up where nobody has counted before."""
    is_due: bool = True
    """It is written down."""


@dataclass(kw_only=True, slots=True)
class Delivery:
    """A heartbeat or batch of a host that is known. Make one with `plain_heartbeat` or `plain_batch`."""

    known: KnownHost
    answer: HeartbeatReceived | BatchReceived
    seen_ns: int
    is_due: bool
    """That the host was seen is written down."""
    runs: dict[int, _Sighting]
    sampled_ns: int | None = None
    """Time of its newest sample."""
    info: dict[str, str | int | float] | None = None
    """New facts of the host."""
    samples: list[tuple[Any, ...]] = field(default_factory=list)
    device_ids: list[int] = field(default_factory=list)
    host_samples: list[tuple[Any, ...]] = field(default_factory=list)
    run_samples: list[tuple[Any, ...]] = field(default_factory=list)
    used: list[tuple[int, int]] = field(default_factory=list)
    """Run and device of each of `run_samples`."""
    steps: list[tuple[Any, ...]] = field(default_factory=list)
    step_runs: list[int] = field(default_factory=list)
    late: set[tuple[int, int]] = field(default_factory=set)
    """Hours of devices that are rolled up already."""

    def remember(self) -> None:
        """It is committed."""
        if self.is_due:
            self.known.seen_ns = max(self.known.seen_ns, self.seen_ns)
        if self.info is not None:
            self.known.info = self.info
        of_run = {run.run_id: run for run in self.known.runs.values()}
        for run_id, sighting in self.runs.items():
            if sighting.is_due and run_id in of_run:
                of_run[run_id].seen_ns = max(of_run[run_id].seen_ns, sighting.at_ns)


def plain_heartbeat(beat: Heartbeat, known: KnownHost, now: int) -> Delivery | None:
    """The heartbeat as it is stored; None: it has to go the long way."""
    if (
        beat.time_ns > now + FRESH_NS
        or described(beat.devices) != known.devices
        or stated_of_host(beat) != known.stated
        or any(not isinstance(value, str) and not -COUNT_MAX <= value <= COUNT_MAX for value in beat.info.values())
    ):
        return None
    runs: dict[int, _Sighting] = {}
    for live in beat.runs:
        run = known.runs.get(live.run)
        if run is None or run.run_id in runs or run.stated != stated_of_run(live):
            return None
        steps = max((rank.steps for rank in live.ranks if rank.steps is not None), default=-1)
        runs[run.run_id] = _Sighting(at_ns=now, steps=steps)
    info = beat.info if beat.info != known.info else None
    return Delivery(known=known, answer=HeartbeatReceived(), seen_ns=now, is_due=True, runs=runs, info=info)


def plain_batch(batch: Batch, known: KnownHost, now: int) -> Delivery | None:
    """The batch as it is stored; None: it has to go the long way."""
    samples, host_samples, run_samples, steps = batch.samples, batch.host_samples, batch.run_samples, batch.steps
    sampled = [one.time_ns for part in (samples, host_samples, run_samples) for one in part]
    times = [*sampled, *(one.time_ns for one in steps)]
    if not times or len(times) > MAX_ROWS or described(batch.devices) != known.devices:
        return None
    # Nothing that may be too old to be kept, or that a clock far ahead of ours has made.
    last = _last_seen(batch, known)
    if last is None or min(times) < now - DAY_NS or max([*times, *last.values()]) > now + FRESH_NS:
        return None
    try:
        device_ids = [known.device_ids[one.device] for one in samples]
        used = [(known.runs[one.run].run_id, known.device_ids[one.device]) for one in run_samples]
    except KeyError:
        return None
    # Of two records of one bucket the fuller one counts, which the long way sees to.
    if len({(one.run, one.time_ns, one.rank) for one in steps}) < len(steps):
        return None
    stepped = {step.run for step in steps}
    latest = min(now, max(times))
    delivery = Delivery(
        known=known,
        answer=BatchReceived(rows=len(times) + len(batch.allocations), unknown_runs=[]),
        seen_ns=latest,
        is_due=latest >= known.seen_ns + SEEN_EVERY_NS,
        runs={
            known.runs[key].run_id: _Sighting(
                at_ns=min(at_ns, now),
                counts=key in stepped,
                is_due=min(at_ns, now) >= known.runs[key].seen_ns + SEEN_EVERY_NS,
            )
            for key, at_ns in last.items()
        },
        sampled_ns=max(sampled, default=None),
        samples=[values_of(one) for one in samples],
        device_ids=device_ids,
        host_samples=[values_of(one) for one in host_samples],
        run_samples=[values_of(one) for one in run_samples],
        used=used,
        steps=[values_of(one) for one in steps],
        step_runs=[known.runs[one.run].run_id for one in steps],
    )
    if min(times) < now - FRESH_NS:
        dated = zip(device_ids, samples, strict=True)
        delivery.late = {(i, s.time_ns - s.time_ns % HOUR_NS) for i, s in dated if s.time_ns < now - FRESH_NS}
    return delivery


def _last_seen(batch: Batch, known: KnownHost) -> dict[str, int] | None:
    """The last time at which the batch shows each of its runs alive; None: a run or an allocation is new."""
    last: dict[str, int] = {}
    for sample in batch.run_samples:
        if sample.time_ns > last.get(sample.run, 0):
            last[sample.run] = sample.time_ns
    for step in batch.steps:
        last[step.run] = max(last.get(step.run, 0), step.last_step_ns or step.time_ns, step.first_step_ns or 0)
    for held in batch.allocations:
        last[held.run] = max(last.get(held.run, 0), held.start_ns)
    if not all(key in known.runs for key in last):
        return None
    if any((held.device, held.start_ns) not in known.runs[held.run].held for held in batch.allocations):
        return None
    return last


_LOCK = """
WITH free_host AS (SELECT id FROM host WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED),
free_run AS (
    SELECT id, host_name, steps IS NOT NULL AS is_counted FROM run
    WHERE id = ANY(%s) AND end_ns IS NULL AND state = %s AND source <> 'agent'
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
SELECT id, TRUE, NULL, NULL FROM free_host UNION ALL SELECT id, FALSE, host_name, is_counted FROM free_run
"""
_SEE_RUN = (
    update(Run)
    .where(Run.id == bindparam("run"))
    .values(
        last_seen_ns=case((Run.last_seen_ns < bindparam("at_ns"), bindparam("at_ns")), else_=Run.last_seen_ns),
        steps=case((func.coalesce(Run.steps, -1) < bindparam("counted"), bindparam("counted")), else_=Run.steps),
    )
    .execution_options(synchronize_session=False)
)
_SEE_HOST = (
    update(Host)
    .where(Host.id == bindparam("host"))
    .values(last_seen_ns=case((Host.last_seen_ns < bindparam("at_ns"), bindparam("at_ns")), else_=Host.last_seen_ns))
    .execution_options(synchronize_session=False)
)
_SEE_AT_ONCE = """
WITH seen AS (
    UPDATE host SET last_seen_ns = greatest(host.last_seen_ns, given.at_ns)
    FROM unnest(%s::int8[], %s::int8[]) AS given (id, at_ns) WHERE host.id = given.id
)
UPDATE run SET last_seen_ns = greatest(run.last_seen_ns, given.at_ns),
    steps = CASE WHEN given.counted > coalesce(run.steps, -1) THEN given.counted ELSE run.steps END
FROM unnest(%s::int8[], %s::int8[], %s::int8[]) AS given (id, at_ns, counted) WHERE run.id = given.id
"""
"""Both of these, of any number of hosts and runs."""
_TELL_HOST = (
    update(Host)
    .where(Host.id == bindparam("host"))
    .values(info=bindparam("facts", type_=Host.info.type))
    .execution_options(synchronize_session=False)
)


def store(session: Session, deliveries: Sequence[Delivery]) -> list[Delivery]:
    """Store what can be stored at once; returns it. The others have to go the long way, and have changed nothing."""
    deliveries = _one_batch_each(deliveries)
    hosts, runs = _lock(
        session,
        sorted({one.known.host_id for one in deliveries}),
        sorted({run_id for one in deliveries for run_id in one.runs}),
    )
    deliveries = [one for one in deliveries if one.known.host_id in hosts and _are_free(one, runs)]
    if deliveries:
        _see(session, deliveries)
        _add(session, deliveries)
    return deliveries


def _one_batch_each(deliveries: Sequence[Delivery]) -> list[Delivery]:
    """Without a second batch of a host, which may have rows of the first."""
    found: set[tuple[int, bool]] = set()
    kept = []
    for one in deliveries:
        which = one.known.host_id, isinstance(one.answer, BatchReceived)
        if which not in found:
            found.add(which)
            kept.append(one)
    return kept


Runs = dict[int, tuple[str | None, bool]]
"""Host of each run, and whether somebody has counted its steps."""


def _lock(session: Session, host_ids: list[int], run_ids: list[int]) -> tuple[set[int], Runs]:
    """Hosts, and runs that live, of these, without those that somebody else holds."""
    if session.get_bind().dialect.name == "postgresql":
        rows = read(session, _LOCK, (host_ids, run_ids, RunState.RUNNING.value))
        return {row[0] for row in rows if row[1]}, {row[0]: (row[2], row[3]) for row in rows if not row[1]}
    begin_writing(session)
    alive = Run.end_ns.is_(None), Run.state == RunState.RUNNING.value, Run.source != RunSource.AGENT.value
    runs = select(Run.id, Run.host_name, Run.steps.is_not(None)).where(Run.id.in_(run_ids), *alive)
    hosts = session.scalars(select(Host.id).where(Host.id.in_(host_ids)))
    return set(hosts), {row[0]: (row[1], row[2]) for row in session.connection().execute(runs)}


def _are_free(delivery: Delivery, runs: Runs) -> bool:
    for run_id, sighting in delivery.runs.items():
        host, is_counted = runs.get(run_id, (None, False))
        if host != delivery.known.name or (sighting.counts and not is_counted):
            return False
    return True


def _see(session: Session, deliveries: Sequence[Delivery]) -> None:
    """Write down who was seen."""
    hosts: dict[int, int] = {}
    new_facts = []
    runs: dict[int, tuple[int, int]] = {}
    for one in deliveries:
        host_id = one.known.host_id
        if one.is_due:
            hosts[host_id] = max(one.seen_ns, hosts.get(host_id, 0))
        if one.info is not None:
            new_facts.append({"host": host_id, "facts": one.info})
        for run_id, sighting in one.runs.items():
            if sighting.is_due:
                at_ns, steps = runs.get(run_id, (0, -1))
                runs[run_id] = max(sighting.at_ns, at_ns), max(sighting.steps, steps)
    # Core's connection rather than the session: half the work, the same transaction.
    connection = session.connection()
    if new_facts:
        connection.execute(_TELL_HOST, new_facts)
    seen_hosts = [{"host": host_id, "at_ns": at_ns} for host_id, at_ns in sorted(hosts.items())]
    seen_runs = [{"run": run_id, "at_ns": at_ns, "counted": n} for run_id, (at_ns, n) in sorted(runs.items())]
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(_SEE_AT_ONCE, (_arrays(seen_hosts, 2) + _arrays(seen_runs, 3)))
        return
    for statement, rows in ((_SEE_HOST, seen_hosts), (_SEE_RUN, seen_runs)):
        if rows:
            connection.execute(statement, rows)


def _arrays(rows: list[dict[str, int]], width: int) -> tuple[list[int], ...]:
    return tuple(list(column) for column in zip(*(row.values() for row in rows), strict=True)) or ([],) * width


def _add(session: Session, deliveries: Sequence[Delivery]) -> None:
    host_ids = [one.known.host_id for one in deliveries for _ in one.host_samples]
    used = list(chain.from_iterable(one.used for one in deliveries))
    add_together(
        session,
        {
            HostSample: _columns(HostSampleRecord, deliveries, lambda one: one.host_samples, host_id=host_ids),
            Sample: _columns(
                DeviceSample,
                deliveries,
                lambda one: one.samples,
                device_id=list(chain.from_iterable(one.device_ids for one in deliveries)),
            ),
            RunSample: _columns(
                RunSampleRecord,
                deliveries,
                lambda one: one.run_samples,
                run_id=[run_id for run_id, _ in used],
                device_id=[device_id for _, device_id in used],
            ),
        },
    )
    run_ids = list(chain.from_iterable(one.step_runs for one in deliveries))
    if run_ids:
        put_new_steps(session, _columns(StepRecord, deliveries, lambda one: one.steps, run_id=run_ids))
    dirty_hours.mark(session, set().union(*(one.late for one in deliveries)))


_NAMED = ("run", "device")


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(one.name for one in dataclasses.fields(kind))


def _columns(
    kind: Any,
    deliveries: Sequence[Delivery],
    rows_of: Callable[[Delivery], list[tuple[Any, ...]]],
    **ids: Sequence[Any],
) -> dict[str, Sequence[Any]]:
    columns = zip(*chain.from_iterable(rows_of(one) for one in deliveries), strict=True)
    named: dict[str, Sequence[Any]] = dict(zip(_names(kind), columns, strict=False))
    return {name: values for name, values in named.items() if name not in _NAMED} | ids
