"""A run over time, thinned in the database to as many points as a chart shows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Float, Select, cast, func, literal_column, select
from sqlalchemy.orm import Session

from tightship_platform.database.models import Capture, Device, Host, Rollup, Run, RunSample, Sample, StepStat
from tightship_platform.errors import Invalid
from tightship_platform.queries.allocations import held_intervals
from tightship_platform.queries.runs import find_run
from tightship_platform.results.host import HostDevice
from tightship_platform.results.timeline import CaptureSpan, DeviceSeries, RunSeries, StepSeries, Timeline
from tightship_platform.samples.retention import is_removed
from tightship_platform.samples.rollups import HOUR_NS, METRICS, MINUTE_NS
from tightship_platform.vocabulary import CaptureState

MAX_POINTS = 5000
MAX_FILLED = 100 * MAX_POINTS
"""Values of all ranks up to which holes between step buckets are filled slice by slice."""


def run_timeline(session: Session, key: str, *, points: int = 600) -> Timeline:
    """Series of a run from its start to its end (or last sign of life), at most about `points` values each.

    Each value is the mean of a slice of time and stands at the slice's start. Long runs are read from their rollups.
    Records later than the run's end (a clock was set back, or the host reported late) extend the time shown: whatever
    times the rows hold, there are at most about `points` slices.

    :raises NotFound: no such run.
    :raises Invalid: points out of range.
    """
    if not 1 <= points <= MAX_POINTS:
        raise Invalid("points", points, f"1 to {MAX_POINTS}")
    run = find_run(session, key)
    start_ns = run.start_ns
    end_ns = _end(session, run)
    width_ns = max(-(-(end_ns - start_ns) // points), 1)
    devices = _devices(session, run)
    return Timeline(
        run=run.key,
        start_ns=start_ns,
        end_ns=end_ns,
        width_ns=width_ns,
        devices=[
            DeviceSeries(**(vars(device) | _device_series(session, run, device_id, start_ns, end_ns, width_ns)))
            for device_id, device in devices.items()
        ],
        run_samples=[
            RunSeries(device=device.uuid, host=device.host, **_run_series(session, run, device_id, end_ns, width_ns))
            for device_id, device in devices.items()
        ],
        steps=_steps(session, run, end_ns, width_ns, points),
        captures=_captures(session, run),
    )


def _end(session: Session, run: Run) -> int:
    """End of the run, or of its last record where that begins later."""
    end_ns = max(run.end_ns if run.end_ns is not None else run.last_seen_ns, run.start_ns + 1)
    last_step = select(func.max(StepStat.time_ns + StepStat.width_ns))
    last_sample = select(func.max(RunSample.time_ns) + 1)
    later = (
        session.scalar(last_step.where(StepStat.run_id == run.id, StepStat.time_ns >= end_ns)),
        session.scalar(last_sample.where(RunSample.run_id == run.id, RunSample.time_ns >= end_ns)),
    )
    return max(end_ns, *(int(time_ns or 0) for time_ns in later))


def _devices(session: Session, run: Run) -> dict[int, HostDevice]:
    held = list(held_intervals(session, [run.id]).get(run.id, {}))
    rows = session.execute(
        select(Device.id, Host.name.label("host"), Device.uuid, Device.kind, Device.name, Device.memory_bytes)
        .join(Host)
        .where(Device.id.in_(held))
        .order_by(Host.name, Device.uuid)
    )
    return {
        row.id: HostDevice(host=row.host, uuid=row.uuid, kind=row.kind, name=row.name, memory_bytes=row.memory_bytes)
        for row in rows
    }


def _slice(time_ns: Any, start_ns: int, width_ns: int) -> ColumnElement[int]:
    # Written out: PostgreSQL takes two parameters of one value for two different expressions in GROUP BY.
    start, width = literal_column(str(start_ns), BigInteger), literal_column(str(width_ns), BigInteger)
    slice_ns: ColumnElement[int] = (start + (time_ns - start) // width * width).label("slice_ns")
    return slice_ns


def _device_series(
    session: Session, run: Run, device_id: int, start_ns: int, end_ns: int, width_ns: int
) -> dict[str, list[Any]]:
    source: type[Sample] | type[Rollup] = Sample
    # Of a run whose samples were removed the rollups are left: those per minute, or later only those per hour.
    if width_ns >= MINUTE_NS or is_removed(session, run):
        source = Rollup
    slice_ns = _slice(source.time_ns, start_ns, width_ns)
    means = [func.avg(getattr(source, metric)).label(metric) for metric in METRICS]
    wanted = select(slice_ns, *means).where(
        source.device_id == device_id, source.time_ns >= start_ns, source.time_ns <= end_ns
    )
    if source is Rollup:
        minutes = select(Rollup.run_id).where(Rollup.run_id == run.id, Rollup.width_ns == MINUTE_NS).limit(1)
        by_minute = width_ns < HOUR_NS and session.scalar(minutes) is not None
        wanted = wanted.where(Rollup.run_id == run.id, Rollup.width_ns == (MINUTE_NS if by_minute else HOUR_NS))
    return _columns(session, wanted.group_by(slice_ns).order_by(slice_ns), METRICS)


def _run_series(session: Session, run: Run, device_id: int, end_ns: int, width_ns: int) -> dict[str, list[Any]]:
    names = ("util_frac", "memory_used_bytes", "cpu_cores")
    slice_ns = _slice(RunSample.time_ns, run.start_ns, width_ns)
    mine = RunSample.run_id == run.id, RunSample.device_id == device_id
    wanted = (
        select(slice_ns, *(func.avg(getattr(RunSample, name)).label(name) for name in names))
        .where(*mine, RunSample.time_ns >= run.start_ns, RunSample.time_ns < end_ns)
        .group_by(slice_ns)
        .order_by(slice_ns)
    )
    return _columns(session, wanted, names)


def _columns(session: Session, wanted: Select[Any], names: Sequence[str]) -> dict[str, list[Any]]:
    rows = session.execute(wanted).all()
    series: dict[str, list[Any]] = {"time_ns": [int(row.slice_ns) for row in rows]}
    for name in names:
        series[name] = [_number(name, getattr(row, name)) for row in rows]
    return series


def _number(name: str, value: Any) -> float | int | None:
    if value is None:
        return None
    is_whole = name.endswith(("_bytes", "_hz", "_per_s"))
    return round(value) if is_whole else float(value)


def _steps(session: Session, run: Run, end_ns: int, width_ns: int, points: int) -> list[StepSeries]:
    """Steps per second of each rank. Buckets without steps are not recorded: between two buckets the rate is zero."""
    slice_ns = _slice(StepStat.time_ns, run.start_ns, width_ns)
    rows = session.execute(
        select(
            StepStat.rank,
            slice_ns,
            func.sum(cast(StepStat.steps, Float)).label("steps"),
            func.min(StepStat.time_ns).label("first_ns"),
            func.max(StepStat.time_ns + StepStat.width_ns).label("until_ns"),
        )
        .where(StepStat.run_id == run.id, StepStat.time_ns >= run.start_ns, StepStat.time_ns < end_ns)
        .group_by(StepStat.rank, slice_ns)
        .order_by(StepStat.rank, slice_ns)
    )
    ranks = [
        (rank, [(int(r.slice_ns), int(r.steps), int(r.first_ns), int(r.until_ns)) for r in slices])
        for rank, slices in groupby(rows, key=lambda row: int(row.rank))
    ]
    is_filled = len(ranks) * points <= MAX_FILLED
    found = []
    for rank, slices in ranks:
        times, rates = _rates(slices, end_ns, width_ns, is_filled=is_filled)
        found.append(StepSeries(rank=rank, time_ns=times, steps_per_s=rates))
    return found


def _rates(
    slices: list[tuple[int, int, int, int]], shown_ns: int, width_ns: int, *, is_filled: bool
) -> tuple[list[int], list[float]]:
    """Slices as (start, steps, start of the first bucket, end of the last bucket) → times and rates without holes.

    :param shown_ns: end of the time shown.
    :param is_filled: a hole has a value in each of its slices, not in its first and last only (the same line).
    """
    times: list[int] = []
    rates: list[float] = []
    for index, (start_ns, steps, first_ns, until_ns) in enumerate(slices):
        is_last = index == len(slices) - 1
        # The first slice counts from its first bucket, the last one to its last; a bucket may reach into later slices,
        # whose own steps then begin where it ends, or with their own first bucket where the two overlap.
        begin_ns = first_ns if index == 0 else min(max(start_ns, slices[index - 1][3]), first_ns)
        end_ns = until_ns if is_last else max(until_ns, start_ns + width_ns)
        rate = steps * 1e9 / (end_ns - begin_ns)
        times.append(start_ns)
        rates.append(rate)
        next_ns = min(until_ns, shown_ns) if is_last else slices[index + 1][0]
        covered = range(start_ns + width_ns, min(until_ns, next_ns), width_ns)
        empty = range(start_ns + width_ns * (len(covered) + 1), next_ns, width_ns)
        for hole, value in ((covered, rate), (empty, 0.0)):
            shown = hole if is_filled else hole[:: max(len(hole) - 1, 1)]
            times.extend(shown)
            rates.extend([value] * len(shown))
    return times, rates


def _captures(session: Session, run: Run) -> list[CaptureSpan]:
    captures = session.scalars(select(Capture).where(Capture.run_id == run.id).order_by(Capture.requested_ns))
    found = []
    for capture in captures:
        stages = capture.stages
        start_ns = stages.get(CaptureState.RECORDING.value) or stages.get(CaptureState.ARMED.value)
        ends = (CaptureState.WRITTEN, CaptureState.UPLOADED, CaptureState.FAILED)
        end_ns = next((stages[state.value] for state in ends if state.value in stages), None)
        found.append(
            CaptureSpan(
                capture=capture.key,
                state=capture.state,
                requested_ns=capture.requested_ns,
                start_ns=start_ns,
                end_ns=end_ns,
            )
        )
    return found
