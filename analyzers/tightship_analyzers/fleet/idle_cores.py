"""Which share of the cores that a run could have stays idle while it steps, by its samples outside of captures."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, and_, func, not_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from tightship_analyzers.fleet.untraced_steps import span_of
from tightship_platform.database.models import Device, Host, HostSample, RunSample, StepStat, Trace
from tightship_platform.ingest.actions.steps import AROUND_NS, Span, captured_spans

MIN_SAMPLES = 5
"""With fewer instants outside of captures nothing is said."""


def idle_cores_frac(session: Session, trace: Trace) -> float | None:
    """Idle cores of the host over these and the busy ones of the run; see [Note: room on other cores] in
    `findings.moved_work`. None where samples do not tell, and of a run on several hosts."""
    mine = span_of(session, trace)
    first_ns, last_ns = session.execute(
        select(func.min(StepStat.first_step_ns), func.max(StepStat.last_step_ns)).where(StepStat.run_id == trace.run_id)
    ).one()
    if mine is None or first_ns is None or last_ns is None:
        return None
    within = (max(mine[0] - AROUND_NS, first_ns), min(mine[1] + AROUND_NS, last_ns))
    recordings = captured_spans(session, trace.run_id)
    used = (
        select(RunSample.time_ns, Device.host_id, func.sum(RunSample.cpu_cores).label("cores"))
        .join(Device, Device.id == RunSample.device_id)
        .where(RunSample.run_id == trace.run_id, _outside(RunSample.time_ns, within, recordings))
        .group_by(RunSample.time_ns, Device.host_id)
        .subquery()
    )
    hosts = session.execute(
        select(used.c.host_id, func.count(used.c.cores), func.avg(used.c.cores)).group_by(used.c.host_id)
    ).all()
    if len(hosts) != 1 or hosts[0][1] < MIN_SAMPLES:
        return None
    host_id, _, busy = hosts[0]
    samples, busy_frac = session.execute(
        select(func.count(HostSample.cpu_frac), func.avg(HostSample.cpu_frac)).where(
            HostSample.host_id == host_id, _outside(HostSample.time_ns, within, recordings)
        )
    ).one()
    cores = session.get_one(Host, host_id).info.get("cpus")
    if samples < MIN_SAMPLES or not isinstance(cores, int) or not busy:
        return None
    idle = cores * max(0.0, 1 - float(busy_frac))
    return float(idle / (float(busy) + idle))


def _outside(time_ns: InstrumentedAttribute[int], within: Span, recordings: Sequence[Span]) -> ColumnElement[bool]:
    free = [not_(time_ns.between(begin, end)) for begin, end in recordings]
    return and_(time_ns.between(*within), *free)
