"""Is the collection healthy? For its page and `GET /api/v1/collection`; `/metrics` has the same figures where it can.

[Note: a host's clock] No record says how the clock of a host stands to the server's. Its newest sample does: one from
after the host was last heard of was made by a clock that is ahead. One from long before, though nothing waits in the
spool, was made by one that is behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tightship_platform.captures.transitions import CANCELLED
from tightship_platform.database import models
from tightship_platform.queries.hosts import ALIVE_NS, HOSTS_AT_ONCE, not_forgotten
from tightship_platform.results.collection import CollectionHealth, HostDelivery
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import CaptureState

DAY_NS = 86_400 * NS_PER_S
GAP_WINDOW_NS = 600 * NS_PER_S
DELIVERED_NS = 60 * NS_PER_S
"""What an agent took a while ago is delivered after this time: the spool is empty, or something is wrong."""
SKEW_NS = 5 * NS_PER_S
"""Clocks are the same to within this: samples travel for a while."""


def read_collection(session: Session, *, now: int | None = None) -> CollectionHealth:
    """What is delivered, waits and failed now, for as much of it as the caller's team may see."""
    now = now_ns() if now is None else now
    hosts = session.scalars(
        select(models.Host).where(not_forgotten(), models.Host.fleet_id.is_(None)).order_by(models.Host.last_seen_ns)
    ).all()
    live_since_ns = now - ALIVE_NS
    shown = sorted(hosts, key=lambda host: (host.last_seen_ns >= live_since_ns, -(_count(host, "spool_entries") or 0)))
    shown = shown[:HOSTS_AT_ONCE]
    newest, gaps = _newest(session, shown, now), _gaps(session, shown, now)
    waiting = select(func.count(), func.min(models.Capture.requested_ns)).where(
        models.Capture.state == CaptureState.UPLOADED.value
    )
    failed = _failed(now)
    troubled = select(models.Run).where(models.Run.trouble.is_not(None))
    reached = session.get(models.RolledUp, 1)
    waiting_count, waiting_since_ns = session.execute(waiting).one()
    return CollectionHealth(
        hosts=len(hosts),
        silent=sum(host.last_seen_ns < live_since_ns for host in hosts),
        deliveries=[_delivery(host, newest.get(host.id), gaps.get(host.id), now) for host in shown],
        rolled_up_ns=None if reached is None else reached.minutes_ns,
        late_hours=_number(session, select(func.count()).select_from(models.DirtyHour)),
        waiting=waiting_count,
        waiting_since_ns=waiting_since_ns,
        failed=_number(session, failed.with_only_columns(func.count(), maintain_column_froms=True)),
        failure=session.scalar(
            failed.with_only_columns(models.Capture.reason).order_by(models.Capture.requested_ns.desc()).limit(1)
        ),
        troubled=_number(session, troubled.with_only_columns(func.count(), maintain_column_froms=True)),
        trouble=session.scalar(
            troubled.with_only_columns(models.Run.trouble).order_by(models.Run.trouble_ns.desc()).limit(1)
        ),
        refused=_number(
            session,
            select(func.count())
            .select_from(models.Audit)
            .where(models.Audit.time_ns >= now - DAY_NS, models.Audit.action.in_(("token.refuse", "session.refuse"))),
        ),
    )


def _failed(now: int) -> Any:
    """Captures of the last day that failed, without those that somebody cancelled."""
    cancelled = func.coalesce(models.Capture.reason, "").startswith(CANCELLED, autoescape=True)
    return select(models.Capture).where(
        models.Capture.state == CaptureState.FAILED.value, models.Capture.requested_ns >= now - DAY_NS, ~cancelled
    )


def _number(session: Session, statement: Any) -> int:
    return int(session.scalar(statement) or 0)


def _newest(session: Session, hosts: Sequence[models.Host], now: int) -> dict[int, int]:
    """Host → time of its newest sample of the last day, or of the time to come."""
    newest = (
        select(models.HostSample.time_ns)
        .where(models.HostSample.host_id == models.Host.id, models.HostSample.time_ns >= now - DAY_NS)
        .order_by(models.HostSample.time_ns.desc())
        .limit(1)
        .correlate(models.Host)
        .scalar_subquery()
    )
    rows = session.execute(select(models.Host.id, newest).where(models.Host.id.in_([host.id for host in hosts])))
    return {host: time_ns for host, time_ns in rows if time_ns is not None}


def _gaps(session: Session, hosts: Sequence[models.Host], now: int) -> dict[int, int]:
    """Host → longest time between two samples of GAP_WINDOW_NS."""
    sample = models.HostSample
    before = func.lag(sample.time_ns).over(partition_by=sample.host_id, order_by=sample.time_ns)
    pairs = (
        select(sample.host_id, (sample.time_ns - before).label("gap_ns"))
        .where(sample.host_id.in_([host.id for host in hosts]))
        .where(sample.time_ns >= now - GAP_WINDOW_NS, sample.time_ns <= now)
        .subquery()
    )
    rows = session.execute(
        select(pairs.c.host_id, func.max(pairs.c.gap_ns)).where(pairs.c.gap_ns.is_not(None)).group_by(pairs.c.host_id)
    )
    return {host: int(gap_ns) for host, gap_ns in rows}


def _delivery(host: models.Host, newest_ns: int | None, gap_ns: int | None, now: int) -> HostDelivery:
    entries = _count(host, "spool_entries")
    alive = host.last_seen_ns >= now - ALIVE_NS
    left_out = [_count(host, name) for name in ("rows_too_old", "rows_refused")]
    return HostDelivery(
        host=host.name,
        last_seen_ns=host.last_seen_ns,
        alive=alive,
        newest_ns=newest_ns,
        gap_ns=gap_ns,
        ahead_ns=_ahead_ns(host.last_seen_ns, newest_ns, entries) if alive else None,
        agent_version=host.agent_version,
        spool_entries=entries,
        spool_bytes=_count(host, "spool_bytes"),
        dropped=_count(host, "spool_dropped"),
        not_stored=None if None in left_out else sum(count or 0 for count in left_out),
        faults=[
            f"{source.get('name')}: {source.get('detail') or 'error'}"
            for source in host.sources
            if isinstance(source, dict) and source.get("state") == "error"
        ],
    )


def _ahead_ns(last_seen_ns: int, newest_ns: int | None, spool_entries: int | None) -> int | None:
    """See [Note: a host's clock]."""
    if newest_ns is None:
        return None
    ahead_ns = newest_ns - last_seen_ns
    if ahead_ns > SKEW_NS:
        return ahead_ns
    if ahead_ns < -DELIVERED_NS:
        return ahead_ns if spool_entries == 0 else None
    return 0


def _count(host: models.Host, name: str) -> int | None:
    """A figure of the agent; null: it does not say, or nonsense."""
    value = host.info.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
