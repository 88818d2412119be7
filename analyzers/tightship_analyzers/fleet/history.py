"""Reads what samples and steps tell of a run. The database does the counting; only minutes come over."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, and_, case, func, literal_column, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from tightship_analyzers.facts.run.held_idle import MAX_ACTIVITY_FRAC, MINUTE_NS, DeviceMinute, RunHistory
from tightship_analyzers.facts.run.memory import NEAR_FRAC, DeviceMemory, RunEnd
from tightship_analyzers.fleet.account import Phases
from tightship_platform.database.models import Device, Host, Run, RunAccount, RunSample, Sample, StepStat
from tightship_platform.queries.allocations import held_intervals
from tightship_platform.vocabulary import DeviceKind, RunState

FAILED = (RunState.FAILED, RunState.TIMEOUT, RunState.OUT_OF_MEMORY)

# Written out: PostgreSQL takes two parameters of one value for two different expressions in GROUP BY.
_MINUTE: ColumnElement[int] = literal_column(str(MINUTE_NS), BigInteger)


def read_history(session: Session, run: Run) -> RunHistory:
    """Held devices, device minutes and step minutes of one run."""
    held = held_intervals(session, [run.id]).get(run.id, {})
    rows = session.execute(
        select(Device.id, Device.uuid, Device.kind, Host.name).join(Host).where(Device.id.in_(held))
    ).all()
    minutes: list[DeviceMinute] = []
    active_ns: dict[int, int] = {}
    for device, _, kind, _ in rows:
        of_device, first_ns = _device_minutes(session, run, device, held[device], on_cpu=kind == DeviceKind.CPU)
        minutes += of_device
        if first_ns is not None:
            active_ns[device] = first_ns
    return RunHistory(
        held=held,
        device_names={device: f"{host}/{uuid}" for device, uuid, _, host in rows},
        minutes=minutes,
        stepped=_stepped_minutes(session, run, {minute.start_ns for minute in minutes}),
        first_step_ns=read_phases(session, run).first_step_ns,
        active_ns=active_ns,
        workflow=run.workflow.name,
        end=_end(run),
    )


def read_memory(session: Session, run: Run, history: RunHistory) -> dict[int, DeviceMemory]:
    """Accelerator → how full it was while the run held it. A processor's memory is the host's, and no device's."""
    accelerators = session.execute(
        select(Device.id, Device.memory_bytes).where(
            Device.id.in_(history.held), Device.kind != DeviceKind.CPU.value, Device.memory_bytes > 0
        )
    )
    found = {}
    for device, capacity in accelerators:
        assert capacity is not None, "asked for"
        start_ns, end_ns = history.held[device][0][0], history.held[device][-1][1]
        window = max(start_ns, history.first_step_ns or 0), end_ns
        mine = and_(RunSample.run_id == run.id, RunSample.device_id == device)
        memory = _memory(session, RunSample.time_ns, RunSample.memory_used_bytes, mine, window, capacity)
        if memory is None:
            whole = Sample.device_id == device
            memory = _memory(session, Sample.time_ns, Sample.memory_used_bytes, whole, window, capacity)
        if memory is not None:
            found[device] = memory
    return found


def read_account(session: Session, run: Run) -> dict[str, int]:
    """Bucket → device-ns, as last accounted."""
    rows = session.execute(select(RunAccount.bucket, RunAccount.device_ns).where(RunAccount.run_id == run.id))
    return {row.bucket: row.device_ns for row in rows}


def _end(run: Run) -> RunEnd | None:
    if run.state != RunState.FAILED:
        return None
    return RunEnd(exit_code=run.exit_code, error=run.error, oom_kills=run.oom_kills)


def _memory(
    session: Session,
    time_ns: InstrumentedAttribute[int],
    used: InstrumentedAttribute[int | None],
    which: ColumnElement[bool],
    window: tuple[int, int],
    capacity: int,
) -> DeviceMemory | None:
    near = func.sum(case((used >= int(capacity * NEAR_FRAC), 1), else_=0))
    samples, full, peak = session.execute(
        select(func.count(used), near, func.max(used)).where(which, time_ns >= window[0], time_ns < window[1])
    ).one()
    if not samples:
        return None
    return DeviceMemory(capacity_bytes=capacity, samples=int(samples), near=int(full), peak_bytes=int(peak))


def read_phases(session: Session, run: Run) -> Phases:
    """First and last step of any rank, and how the run ended; its checkpoints are in its traces."""
    first, last = session.execute(
        select(func.min(StepStat.first_step_ns), func.max(StepStat.last_step_ns)).where(StepStat.run_id == run.id)
    ).one()
    return Phases(
        first_step_ns=first,
        last_step_ns=last,
        ended=run.state != RunState.RUNNING,
        loses_work=has_failed(run) and run.steps != 0,
    )


def has_failed(run: Run) -> bool:
    """It failed, ran out of time or of memory, or its node did. A live run that fell silent may go on all the same."""
    return run.state in FAILED or (run.state == RunState.LOST and run.end_ns is not None)


def _device_minutes(
    session: Session, run: Run, device: int, held: list[tuple[int, int]], *, on_cpu: bool
) -> tuple[list[DeviceMinute], int | None]:
    """Per minute the run's own use of the device, and its first sample with activity; where that is not known, the use
    of the whole device."""
    if not held:
        return [], None
    start_ns, end_ns = held[0][0], held[-1][1]
    mine = and_(RunSample.run_id == run.id, RunSample.device_id == device)
    activity = RunSample.cpu_cores if on_cpu else RunSample.util_frac
    found = _minutes(session, RunSample.time_ns, activity, mine, start_ns, end_ns)
    if not found:
        found = _minutes(session, Sample.time_ns, Sample.util_frac, Sample.device_id == device, start_ns, end_ns)
    active = [first_ns for *_, first_ns in found if first_ns is not None]
    return [DeviceMinute(device, minute, samples, top) for minute, samples, top, _ in found], min(active, default=None)


def _minutes(
    session: Session,
    time_ns: InstrumentedAttribute[int],
    activity: InstrumentedAttribute[float | None],
    which: ColumnElement[bool],
    start_ns: int,
    end_ns: int,
) -> list[tuple[int, int, float, int | None]]:
    minute = time_ns - time_ns % _MINUTE
    active = func.min(case((activity >= MAX_ACTIVITY_FRAC, time_ns)))
    rows: Any = session.execute(
        select(minute, func.count(activity), func.max(activity), active)
        .where(which, time_ns >= start_ns, time_ns < end_ns, activity.is_not(None))
        .group_by(minute)
        .order_by(minute)
    )
    return [
        (int(start), int(samples), float(top), None if first_ns is None else int(first_ns))
        for start, samples, top, first_ns in rows
    ]


def _stepped_minutes(session: Session, run: Run, minutes: set[int]) -> set[int]:
    """Those of the minutes that a bucket with steps touches; a bucket may span several."""
    first = StepStat.time_ns - StepStat.time_ns % _MINUTE
    end = func.max(StepStat.time_ns + StepStat.width_ns)
    rows: Any = session.execute(select(first, end).where(StepStat.run_id == run.id, StepStat.steps > 0).group_by(first))
    # By the minutes that have samples, not by the time between two instants: a clock may say anything.
    ordered = sorted(minutes)
    return {
        minute
        for start, stop in rows
        for minute in ordered[bisect_left(ordered, int(start)) : bisect_left(ordered, int(stop))]
    }
