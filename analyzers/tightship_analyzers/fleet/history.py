"""Reads what samples and steps tell of a run. The database does the counting; only minutes come over."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ColumnElement, and_, func, literal_column, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from tightship_analyzers.facts.held_idle import MINUTE_NS, DeviceMinute, RunHistory
from tightship_analyzers.fleet.account import Phases
from tightship_platform.models import Device, Host, Run, RunSample, Sample, StepStat
from tightship_platform.reads.held import held_intervals
from tightship_platform.vocabulary import DeviceKind, RunState

# Written out: PostgreSQL takes two parameters of one value for two different expressions in GROUP BY.
_MINUTE: ColumnElement[int] = literal_column(str(MINUTE_NS), BigInteger)


def read_history(session: Session, run: Run) -> RunHistory:
    """Held devices, device minutes and step minutes of one run."""
    held = held_intervals(session, [run.id]).get(run.id, {})
    rows = session.execute(
        select(Device.id, Device.uuid, Device.kind, Host.name).join(Host).where(Device.id.in_(held))
    ).all()
    minutes = [
        minute
        for device, _, kind, _ in rows
        for minute in _device_minutes(session, run, device, held[device], on_cpu=kind == DeviceKind.CPU)
    ]
    return RunHistory(
        held=held,
        device_names={device: f"{host}/{uuid}" for device, uuid, _, host in rows},
        minutes=minutes,
        stepped=_stepped_minutes(session, run),
        first_step_ns=read_phases(session, run).first_step_ns,
    )


def read_phases(session: Session, run: Run) -> Phases:
    """First and last step of any rank."""
    first, last, rows = session.execute(
        select(func.min(StepStat.first_step_ns), func.max(StepStat.last_step_ns), func.count()).where(
            StepStat.run_id == run.id
        )
    ).one()
    return Phases(
        counted=rows > 0 or run.steps is not None,
        first_step_ns=first,
        last_step_ns=last,
        ended=run.state != RunState.RUNNING,
    )


def _device_minutes(
    session: Session, run: Run, device: int, held: list[tuple[int, int]], *, on_cpu: bool
) -> list[DeviceMinute]:
    """Per minute the run's own use of the device; where that is not known, the use of the whole device."""
    if not held:
        return []
    start_ns, end_ns = held[0][0], held[-1][1]
    mine = and_(RunSample.run_id == run.id, RunSample.device_id == device)
    activity = RunSample.cpu_cores if on_cpu else RunSample.util_frac
    found = _minutes(session, RunSample.time_ns, activity, mine, start_ns, end_ns)
    if not found:
        found = _minutes(session, Sample.time_ns, Sample.util_frac, Sample.device_id == device, start_ns, end_ns)
    return [DeviceMinute(device, minute, samples, top) for minute, samples, top in found]


def _minutes(
    session: Session,
    time_ns: InstrumentedAttribute[int],
    activity: InstrumentedAttribute[float | None],
    which: ColumnElement[bool],
    start_ns: int,
    end_ns: int,
) -> list[tuple[int, int, float]]:
    minute = time_ns - time_ns % _MINUTE
    rows: Any = session.execute(
        select(minute, func.count(activity), func.max(activity))
        .where(which, time_ns >= start_ns, time_ns < end_ns, activity.is_not(None))
        .group_by(minute)
        .order_by(minute)
    )
    return [(int(start), int(samples), float(top)) for start, samples, top in rows]


def _stepped_minutes(session: Session, run: Run) -> set[int]:
    """A bucket of steps may span minutes; it vouches for all that it touches."""
    first = StepStat.time_ns - StepStat.time_ns % _MINUTE
    end = func.max(StepStat.time_ns + StepStat.width_ns)
    rows: Any = session.execute(select(first, end).where(StepStat.run_id == run.id, StepStat.steps > 0).group_by(first))
    return {minute for start, stop in rows for minute in range(int(start), int(stop), MINUTE_NS)}
