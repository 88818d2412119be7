"""The platform's periodic tasks. Each does what the database says is due, so running twice or late does no harm."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from celery import shared_task

from tightship_platform import captures, ingest
from tightship_platform.captures import files
from tightship_platform.captures.artifact_store import open_artifacts
from tightship_platform.database import partitions
from tightship_platform.database.audit import audit, remove_old_entries
from tightship_platform.database.per_process import process_database
from tightship_platform.processes.steady_clock import SteadyClock
from tightship_platform.samples import retention, rollups
from tightship_platform.settings import load_settings
from tightship_platform.tasks.app import ANALYZE_CAPTURE, send
from tightship_platform.tasks.quietly import quietly
from tightship_platform.tasks.removal import old, runs
from tightship_platform.units import format_bytes, now_ns, plural

log = logging.getLogger(__name__)

ROLL_UP_S = 20.0
"""No more marked hours are begun after this time; the task comes again."""
FINISH_S = 60.0
"""No more rows of deleted runs are removed after this time; the task comes again."""
RETENTION = "retention"
"""Who removes what is old, in the audit."""

clock = SteadyClock()
"""Of this process."""


def _periodic(work: Callable[[], None]) -> Callable[[], None]:
    """Register a task that comes again soon."""
    task: Callable[[], None] = shared_task(quietly(work), name=f"tightship_platform.{work.__name__}")
    return task


@_periodic
def sweep_captures() -> None:
    """End or revive captures that got stuck, and send off analyses that nobody does."""
    due: list[str] = []
    with process_database().session() as session:
        result = captures.sweep(session, due.append)
    # After the commit: a worker that takes the task must find the row as it is now.
    settings = load_settings()
    for key in due:
        send(settings, ANALYZE_CAPTURE, key)
    for fate in ("expired", "failed", "released"):
        for key in getattr(result, fate):
            log.info("Capture %s: %s", key, fate.replace("_", " "))


@_periodic
def request_scheduled_captures() -> None:
    """Ask for the captures that schedules are due."""
    with process_database().session() as session:
        captures.request_scheduled_captures(session)


@_periodic
def close_lost_runs() -> None:
    """Mark runs that fell silent as lost.

    Not while the clock was set a moment ago, or this process has only begun: after a step forward every run looks as if
    nothing had been heard of it, until its host reports again.
    """
    if clock.steady_ns() < ingest.LOST_AFTER_NS:
        return
    with process_database().session() as session:
        for key in ingest.close_lost_runs(session):
            log.info("Run %s is lost: nothing was heard of it", key)


@_periodic
def roll_up() -> None:
    """Bring the means over minutes and hours up to date."""
    database, deadline_s = process_database(), time.monotonic() + ROLL_UP_S
    with database.session() as session:
        rollups.roll_up(session)
    made = 1
    while made and time.monotonic() < deadline_s:
        with database.session() as session:
            made = rollups.roll_up_dirty(session)


@_periodic
def make_partitions() -> None:
    """Make tomorrow's partitions of the sample tables, where the database has any."""
    with process_database().session() as session:
        for name in partitions.make_partitions(session):
            log.info("Partition %s made", name)


@_periodic
def remove_old_records() -> None:
    """Remove samples, step counts and means per minute that are older than the settings keep them."""
    settings, database = load_settings(), process_database()
    removed = retention.remove_samples(database, keep_days=settings.keep_days)
    if removed.days:
        log.info("Samples of %s were removed (TIGHTSHIP_KEEP_DAYS=%d)", plural(removed.days, "day"), settings.keep_days)
    for run, days in removed.kept.items():
        log.info(
            "Samples of %s are kept for run %s: it is not over, not accounted for, or imported",
            plural(days, "day"),
            run,
        )
    with database.session() as session:
        if removed.days:
            audit(session, RETENTION, "samples.remove", plural(removed.days, "day"), keep_days=settings.keep_days)
        newest_ns = retention.newest_sample_ns(session) or 0
    entries = remove_old_entries(database, settings.keep_audit_days, now=min(now_ns(), newest_ns))
    if entries:
        log.info("%s of the audit were removed", plural(entries, "entry", "entries"))
    count = retention.remove_minutes(database, keep_days=settings.keep_rollup_days)
    if count:
        log.info("Means per minute of %s were removed", plural(count, "run"))


@_periodic
def remove_old_runs() -> None:
    """Remove runs and captures, and forget hosts, that are older than the settings keep them."""
    settings, database = load_settings(), process_database()
    removed = old.remove_old(
        database,
        open_artifacts(settings),
        run_days=settings.keep_run_days,
        capture_days=settings.keep_capture_days,
        host_days=settings.keep_host_days,
    )
    for what, count, days in (
        ("run", removed.runs, settings.keep_run_days),
        ("capture", removed.captures, settings.keep_capture_days),
    ):
        if count:
            log.info("%s went because of their age (%d days)", plural(count, what), days)
            with database.session() as session:
                audit(session, RETENTION, f"{what}s.remove", plural(count, what), keep_days=days)
    if removed.hosts:
        log.info("%s forgotten (TIGHTSHIP_KEEP_HOST_DAYS=%d)", plural(removed.hosts, "host"), settings.keep_host_days)
        with database.session() as session:
            audit(session, RETENTION, "hosts.forget", plural(removed.hosts, "host"), keep_days=settings.keep_host_days)


@_periodic
def finish_removals() -> None:
    """Finish to remove the runs that somebody deleted, and those that a worker which died had begun."""
    settings, database, deadline_s = load_settings(), process_database(), time.monotonic() + FINISH_S
    with database.session() as session:
        keys = runs.begun(session)
    if keys:
        gone = runs.finish_all(database, open_artifacts(settings), keys, deadline_s=deadline_s)
        log.info("%s of %s that were deleted are gone", len(gone), plural(len(keys), "run"))


@_periodic
def remove_old_files() -> None:
    """Remove trace files that are older than the settings keep them, and files that no trace names."""
    settings, database = load_settings(), process_database()
    with database.session() as session:
        keep_days = retention.days_that_data_show(session, settings.keep_trace_days)
    removed = files.sweep(database, open_artifacts(settings), keep_days=keep_days)
    if removed.files:
        with database.session() as session:
            size = format_bytes(removed.size_bytes)
            audit(session, RETENTION, "traces.remove", plural(removed.files, "file"), size=size, traces=removed.traces)
    if removed.traces:
        traces = plural(removed.traces, "trace")
        log.info("The files of %s go (TIGHTSHIP_KEEP_TRACE_DAYS=%d)", traces, settings.keep_trace_days)
    if removed.files:
        removed_bytes = format_bytes(removed.size_bytes)
        log.info("%s that no trace names went out of the store (%s)", plural(removed.files, "file"), removed_bytes)
