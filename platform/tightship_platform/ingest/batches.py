"""Batches: a host's samples, step counts and allocations since the last one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy.orm import Session

from tightship_platform import validation
from tightship_platform.database.models import HostSample, Run, RunSample, Sample
from tightship_platform.database.upsert import Row, add_samples
from tightship_platform.errors import Invalid, TooLarge
from tightship_platform.ingest.allocations import apply_allocations
from tightship_platform.ingest.inventory import checked_devices, put_devices, put_host
from tightship_platform.ingest.runs import revive, runs_by_key, seen
from tightship_platform.ingest.steps import counted_steps, put_steps
from tightship_platform.samples import rollups
from tightship_platform.samples.retention import DAY_NS, day_of, is_removed, is_too_old, removed_days
from tightship_platform.units import now_ns
from tightship_platform.wire import AllocationRecord, Batch, BatchReceived, StepRecord

MAX_ROWS = 200_000
"""Rows of one batch; an agent that has more to tell sends several."""
MAX_BUCKET_NS = 86_400_000_000_000


def apply_batch(session: Session, batch: Batch, *, keep_days: int = 0, now: int | None = None) -> BatchReceived:
    """Store a batch. Sent again, it changes nothing.

    Samples and steps of days whose records were removed, or that ended more than `keep_days` ago (0: none), are not
    stored but counted as `too_old`; the other rows are. See [Note: what may go] in `retention`.

    :raises Invalid: a value is not acceptable; nothing was changed.
    :raises TooLarge: more than MAX_ROWS rows.
    """
    now = now_ns() if now is None else now
    parts = (batch.samples, batch.host_samples, batch.run_samples, batch.steps, batch.allocations)
    count = sum(len(part) for part in parts)
    if count > MAX_ROWS:
        raise TooLarge(f"A batch of {count} rows is larger than {MAX_ROWS}; send it in parts")
    validation.name("Host", batch.host)
    devices = checked_devices(batch.devices)
    samples = [_row(sample, now) for sample in batch.samples]
    host_samples = [_row(sample, now) for sample in batch.host_samples]
    run_samples = [_row(sample, now) for sample in batch.run_samples]
    for step in batch.steps:
        _check_step(step, now)
    for allocation in batch.allocations:
        _check_allocation(allocation, now)

    is_kept = _kept(session, batch, keep_days, now)
    samples, host_samples, run_samples = (
        [row for row in rows if is_kept(row["time_ns"])] for rows in (samples, host_samples, run_samples)
    )
    batch = dataclasses.replace(
        batch,
        run_samples=[sample for sample in batch.run_samples if is_kept(sample.time_ns)],
        steps=[step for step in batch.steps if is_kept(step.time_ns)],
    )
    stored = (samples, host_samples, run_samples, batch.steps, batch.allocations)
    latest = max((row["time_ns"] for row in [*samples, *host_samples, *run_samples]), default=now)
    host_id = put_host(session, batch.host, min(latest, now))
    mentioned = {row["device"] for row in (*samples, *run_samples)} | {held.device for held in batch.allocations}
    device_ids = put_devices(session, host_id, devices, mentioned)
    first, last = _span_of_runs(batch)
    runs, unknown = runs_by_key(session, first, batch.host)
    apply_allocations(session, runs, device_ids, batch.allocations)

    for row in host_samples:
        row["host_id"] = host_id
    for row in samples:
        row["device_id"] = device_ids[row.pop("device")]
    for row in run_samples:
        row["device_id"] = device_ids[row.pop("device")]
        row["run_id"] = runs[row.pop("run")].id
    add_samples(session, HostSample, sorted(host_samples, key=lambda row: row["time_ns"]))
    add_samples(session, Sample, sorted(samples, key=lambda row: (row["time_ns"], row["device_id"])))
    in_order = sorted(run_samples, key=lambda row: (row["time_ns"], row["run_id"], row["device_id"]))
    add_samples(session, RunSample, in_order)
    put_steps(session, sorted((_step_row(step, runs) for step in batch.steps), key=lambda row: tuple(row.values())[:3]))

    stepped = {step.run for step in batch.steps}
    for key, run in runs.items():
        if run.end_ns is None:
            seen(run, min(last[key], now))
            revive(run, now)
        elif not is_removed(session, run):
            # The account of a run that has ended is made once; what comes late makes it out of date.
            run.accounted_ns = None
        if key in stepped and (run.end_ns is not None or run.steps is None):
            run.steps = counted_steps(session, run)
    session.flush()
    _roll_up_late(session, samples, now)
    too_old = count - sum(len(part) for part in stored)
    return BatchReceived(rows=count, too_old=too_old, unknown_runs=unknown)


def _kept(session: Session, batch: Batch, keep_days: int, now: int) -> Callable[[int], bool]:
    """Whether a sample or step count of a time is stored."""
    parts = (batch.samples, batch.host_samples, batch.run_samples, batch.steps)
    oldest = min((record.time_ns for part in parts for record in part), default=now)
    if oldest >= now - DAY_NS:  # nothing younger is ever removed
        return lambda _: True
    removed = removed_days(session, oldest, now)
    return lambda time_ns: day_of(time_ns) not in removed and not is_too_old(day_of(time_ns), keep_days, now)


def _row(record: Any, now: int) -> Row:
    """A sample as a row, each column checked by what its name says it is."""
    row: Row = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if field.name == "time_ns":
            row["time_ns"] = validation.time_ns("Sample time_ns", value, now)
        elif field.name == "device":
            row["device"] = validation.name("Device uuid", value)
        elif field.name == "run":
            row["run"] = validation.key("Run", value)
        elif value is None:
            row[field.name] = None
        elif field.name.endswith("_frac"):
            row[field.name] = validation.ratio(field.name, value)
        elif field.name == "temperature_c":
            row[field.name] = validation.number(field.name, value, least=-273.15)
        elif field.name in ("power_w", "cpu_cores"):
            row[field.name] = validation.number(field.name, value)
        else:
            row[field.name] = validation.count(field.name, value)
    return row


def _check_step(step: StepRecord, now: int) -> None:
    validation.key("Run", step.run)
    validation.count("Rank", step.rank, least=-1, most=validation.RANK_MAX)
    validation.time_ns("Step time_ns", step.time_ns, now)
    validation.count("Step width_ns", step.width_ns, least=1, most=MAX_BUCKET_NS)
    validation.count("Steps", step.steps)
    for what, value in (("first_step_ns", step.first_step_ns), ("last_step_ns", step.last_step_ns)):
        if value is not None:
            validation.time_ns(what, value, now)


def _step_row(step: StepRecord, runs: dict[str, Run]) -> Row:
    return {
        "run_id": runs[step.run].id,
        "time_ns": step.time_ns,
        "rank": step.rank,
        "width_ns": step.width_ns,
        "steps": step.steps,
        "first_step_ns": step.first_step_ns,
        "last_step_ns": step.last_step_ns,
    }


def _check_allocation(allocation: AllocationRecord, now: int) -> None:
    validation.key("Run", allocation.run)
    validation.name("Device uuid", allocation.device)
    validation.time_ns("Allocation start_ns", allocation.start_ns, now)
    if allocation.end_ns is not None:
        validation.time_ns("Allocation end_ns", allocation.end_ns, now)
        if allocation.end_ns < allocation.start_ns:
            raise Invalid("Allocation end_ns", allocation.end_ns, f"a time after start_ns {allocation.start_ns}")


def _span_of_runs(batch: Batch) -> tuple[dict[str, int], dict[str, int]]:
    """First and last time at which the batch shows each run alive."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for run, start_ns, end_ns in _sightings(batch):
        first[run] = min(start_ns, first.get(run, start_ns))
        last[run] = max(end_ns, last.get(run, end_ns))
    return first, last


def _sightings(batch: Batch) -> Iterable[tuple[str, int, int]]:
    for sample in batch.run_samples:
        yield sample.run, sample.time_ns, sample.time_ns
    for step in batch.steps:
        yield step.run, step.time_ns, step.last_step_ns or step.time_ns
    for held in batch.allocations:
        yield held.run, held.start_ns, held.end_ns or held.start_ns


def _roll_up_late(session: Session, samples: list[Row], now: int) -> None:
    """Samples older than what `roll_up` looks at again are rolled up as they come."""
    late: dict[int, list[Row]] = {}
    for row in samples:
        if row["time_ns"] < now - rollups.LATE_NS:
            late.setdefault(day_of(row["time_ns"]), []).append(row)
    # Day by day: what lies between two days may have been removed.
    for rows in late.values():
        times = [row["time_ns"] for row in rows]
        devices = sorted({row["device_id"] for row in rows})
        rollups.roll_up_range(session, min(times), max(times) + 1, device_ids=devices)
