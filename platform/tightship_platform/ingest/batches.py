"""Batches: a host's samples, step counts and allocations since the last one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy.orm import Session

from tightship_platform import validation
from tightship_platform.database.models import HostSample, Run, RunSample, Sample
from tightship_platform.database.reporters import ANYBODY, Reporter, put_host
from tightship_platform.database.upsert import Row, add_samples
from tightship_platform.errors import Invalid, TooLarge
from tightship_platform.ingest.allocations import Reported, apply_allocations
from tightship_platform.ingest.bounds import MAX_BUCKET_NS, check_of
from tightship_platform.ingest.inventory import check_device, checked_devices, put_devices
from tightship_platform.ingest.known import KnownHost, KnownRun, Tell
from tightship_platform.ingest.plain import described
from tightship_platform.ingest.refused_rows import RefusedRows
from tightship_platform.ingest.run_owner import is_of_another
from tightship_platform.ingest.runs import revive, runs_by_key, seen
from tightship_platform.ingest.steps import count_steps, put_steps
from tightship_platform.samples import dirty_hours, rollups
from tightship_platform.samples.retention import (
    DAY_NS,
    day_of,
    is_removed,
    is_too_old,
    newest_sample_ns,
    removed_days,
)
from tightship_platform.units import now_ns
from tightship_platform.wire import AllocationRecord, Batch, BatchReceived, StepRecord

MAX_ROWS = 200_000
"""Rows of one batch; an agent that has more to tell sends several."""
MAX_RUNS = 5000
"""Runs of one batch; no agent sends one of more rows."""


def apply_batch(
    session: Session,
    batch: Batch,
    *,
    keep_days: int = 0,
    reporter: Reporter = ANYBODY,
    refused: RefusedRows | None = None,
    now: int | None = None,
    tell: Tell | None = None,
) -> BatchReceived:
    """Store a batch. Sent again, it changes nothing.

    Rows with a value that cannot be, and rows of another host's runs or of deleted ones, are left out and counted as
    `refused`. So are, as `too_old`, samples and steps of days whose records were removed, or that ended more than
    `keep_days` before the newest sample (0: none); see [Note: what may go] in `retention`. All other rows are stored.

    :param refused: rows that were left out of the batch before it came here.
    :param tell: gets what is known of the host from then on.
    :raises Invalid: its host, or the number of its devices, is not acceptable; nothing was changed.
    :raises Forbidden: the reporter may not speak for this host.
    :raises TooLarge: more than MAX_ROWS rows, or than MAX_RUNS runs; nothing was changed.
    """
    now = now_ns() if now is None else now
    refused = RefusedRows() if refused is None else refused
    parts = (batch.samples, batch.host_samples, batch.run_samples, batch.steps, batch.allocations)
    count = sum(len(part) for part in parts)
    if count > MAX_ROWS:
        raise TooLarge(f"A batch of {count} rows is larger than {MAX_ROWS}; send it in parts")
    validation.name("Host", batch.host)
    devices = checked_devices(refused.without(batch.devices, check_device))
    checked = [refused.without(part, lambda sample: _row(sample, now)) for part in parts[:3]]
    steps = refused.without(batch.steps, lambda step: _check_step(step, now))
    allocations = refused.without(batch.allocations, lambda allocation: check_allocation(allocation, now))

    times = [*(row["time_ns"] for part in checked for row in part), *(step.time_ns for step in steps)]
    count = len(times) + len(allocations) + refused.count
    # The host first: whoever makes a partition takes it before the samples that `kept` looks at.
    latest = max((row["time_ns"] for part in checked for row in part), default=now)
    host_id = put_host(session, batch.host, min(latest, now), reporter)
    is_kept = kept(session, times, keep_days, now)
    samples, host_samples, run_samples = ([row for row in part if is_kept(row["time_ns"])] for part in checked)
    steps = [step for step in steps if is_kept(step.time_ns)]
    too_old = len(times) - len(samples) - len(host_samples) - len(run_samples) - len(steps)
    mentioned = {row["device"] for row in (*samples, *run_samples)} | {held.device for held in allocations}
    device_ids = put_devices(session, host_id, devices, mentioned)
    first, last = _span_of_runs(run_samples, steps, allocations)
    if len(first) > MAX_RUNS:
        raise TooLarge(f"A batch of {len(first)} runs is larger than {MAX_RUNS}; send it in parts")
    runs, unknown = runs_by_key(session, first, batch.host, team=reporter.team)
    run_samples = [row for row in run_samples if not is_of_another(runs, row["run"], batch.host, refused)]
    steps = [step for step in steps if not is_of_another(runs, step.run, batch.host, refused)]
    allocations = [held for held in allocations if not is_of_another(runs, held.run, batch.host, refused)]
    runs = {key: run for key, run in runs.items() if run.host_name == batch.host}
    apply_allocations(session, reported(allocations, runs, device_ids), now)

    for row in host_samples:
        row["host_id"] = host_id
    for row in samples:
        row["device_id"] = device_ids[row.pop("device")]
    for row in run_samples:
        row["device_id"] = device_ids[row.pop("device")]
        row["run_id"] = runs[row.pop("run")].id
    host_samples.sort(key=lambda row: row["time_ns"])
    samples.sort(key=lambda row: (row["time_ns"], row["device_id"]))
    run_samples.sort(key=lambda row: (row["time_ns"], row["run_id"], row["device_id"]))
    add_samples(session, {HostSample: host_samples, Sample: samples, RunSample: run_samples})
    put_steps(session, sorted((_step_row(step, runs) for step in steps), key=lambda row: tuple(row.values())[:3]))

    stepped = {step.run for step in steps}
    for key, run in runs.items():
        if run.end_ns is None:
            seen(run, min(last[key], now))
            revive(run, now)
        elif not is_removed(session, run):
            # The account of a run that has ended is made once; what comes late makes it out of date.
            run.accounted_ns = None
    count_steps(session, [runs[key] for key in stepped if runs[key].end_ns is not None or runs[key].steps is None])
    session.flush()
    mark_late(session, samples, now)
    if tell is not None and not refused.count:
        tell(_known(batch, host_id, device_ids, runs, unknown))
    return BatchReceived(
        rows=count, too_old=too_old, refused=refused.count, refusal=refused.reason, unknown_runs=unknown
    )


def kept(session: Session, times: Sequence[int], keep_days: int, now: int) -> Callable[[int], bool]:
    """Whether a sample or step count of one of these times is stored."""
    oldest = min(times, default=now)
    if oldest >= now - DAY_NS:  # nothing younger is ever removed
        return lambda _: True
    removed = removed_days(session, oldest, now)
    newest_ns = min(now, max([newest_sample_ns(session) or 0, *times]))
    return lambda time_ns: day_of(time_ns) not in removed and not is_too_old(day_of(time_ns), keep_days, newest_ns)


def _row(record: Any, now: int) -> Row:
    """A sample as a row, each column checked by what its name says it is."""
    row: Row = {"time_ns": validation.time_ns("Sample time_ns", record.time_ns, now)}
    for name, check in _checks(record.__class__):
        row[name] = check(getattr(record, name))
    return row


@cache
def _checks(kind: Any) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    """Of each column of a sample, except its time."""
    return tuple((one.name, check_of(one.name)) for one in dataclasses.fields(kind) if one.name != "time_ns")


def _check_step(step: StepRecord, now: int) -> StepRecord:
    validation.key("Run", step.run)
    validation.count("Rank", step.rank, least=-1, most=validation.RANK_MAX)
    validation.time_ns("Step time_ns", step.time_ns, now)
    validation.count("Step width_ns", step.width_ns, least=1, most=MAX_BUCKET_NS)
    validation.count("Steps", step.steps)
    for what, value in (("first_step_ns", step.first_step_ns), ("last_step_ns", step.last_step_ns)):
        if value is not None:
            validation.time_ns(what, value, now)
    return step


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


def reported(
    records: Sequence[AllocationRecord], runs: Mapping[str, Run], device_ids: Mapping[str, int]
) -> list[Reported]:
    """The records as they are applied."""
    return [
        Reported(run=runs[one.run], device_id=device_ids[one.device], start_ns=one.start_ns, end_ns=one.end_ns)
        for one in records
    ]


def check_allocation(allocation: AllocationRecord, now: int) -> AllocationRecord:
    """The record itself.

    :raises Invalid: a value is not acceptable.
    """
    validation.key("Run", allocation.run)
    validation.name("Device uuid", allocation.device)
    validation.time_ns("Allocation start_ns", allocation.start_ns, now)
    if allocation.end_ns is not None:
        validation.time_ns("Allocation end_ns", allocation.end_ns, now)
        if allocation.end_ns < allocation.start_ns:
            raise Invalid("Allocation end_ns", allocation.end_ns, f"a time after start_ns {allocation.start_ns}")
    return allocation


def _span_of_runs(
    run_samples: list[Row], steps: list[StepRecord], allocations: list[AllocationRecord]
) -> tuple[dict[str, int], dict[str, int]]:
    """First and last time at which these show each run alive."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for run, start_ns, end_ns in _sightings(run_samples, steps, allocations):
        first[run] = min(start_ns, first.get(run, start_ns))
        last[run] = max(end_ns, last.get(run, end_ns))
    return first, last


def _sightings(
    run_samples: list[Row], steps: list[StepRecord], allocations: list[AllocationRecord]
) -> Iterable[tuple[str, int, int]]:
    for sample in run_samples:
        yield sample["run"], sample["time_ns"], sample["time_ns"]
    for step in steps:
        yield step.run, step.time_ns, step.last_step_ns or step.time_ns
    for held in allocations:
        yield held.run, held.start_ns, held.end_ns or held.start_ns


def _known(
    batch: Batch, host_id: int, device_ids: dict[str, int], runs: dict[str, Run], unknown: list[str]
) -> KnownHost:
    known_runs = {
        key: KnownRun(
            run_id=run.id,
            held={(one.device, one.start_ns) for one in batch.allocations if one.run == key and one.end_ns is None},
        )
        for key, run in runs.items()
        if run.end_ns is None and key not in unknown
    }
    return KnownHost(
        name=batch.host, host_id=host_id, device_ids=device_ids, devices=described(batch.devices), runs=known_runs
    )


def mark_late(session: Session, samples: list[Row], now: int) -> None:
    """Samples that `roll_up` does not look at any more."""
    late = (row for row in samples if row["time_ns"] < now - rollups.FRESH_NS)
    dirty_hours.mark(session, {(row["device_id"], row["time_ns"] - row["time_ns"] % rollups.HOUR_NS) for row in late})
