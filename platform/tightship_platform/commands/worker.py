"""`tightship worker` and `tightship beat`: background work."""

from __future__ import annotations

import os
import sys

import click

from tightship_platform.settings import load_settings


def _default_concurrency() -> int:
    return max(1, min(2, os.cpu_count() or 1))


@click.command()
@click.option(
    "--concurrency",
    type=click.IntRange(1, 256),
    default=_default_concurrency,
    show_default="up to 2",
    help="Processes that analyze traces and make plans at the same time; one more is kept for periodic tasks.",
)
@click.option("--beat", is_flag=True, help="Send the periodic tasks too; exactly one process of a fleet may do so.")
def worker(concurrency: int, beat: bool) -> None:
    """Run background tasks: analyze traces, make plans, keep the accounts, rank the opportunities.

    Takes its tasks from TIGHTSHIP_BROKER_URL, and brings the database schema up to date first. `tightship up` starts
    one by itself.
    """
    settings = load_settings()
    _end_quickly_on_sigterm()
    from tightship_platform.processes.private_files import keep_files_private
    from tightship_platform.processes.start import starting

    with starting():
        from tightship_platform.database.engine import upgrade
        from tightship_platform.tasks.worker import run_worker

    keep_files_private()
    upgrade(settings)
    sys.exit(run_worker(settings, concurrency=concurrency, beat=beat))


@click.command()
def beat() -> None:
    """Send the periodic tasks to the workers. Run exactly one, unless a worker runs with --beat."""
    settings = load_settings()
    from tightship_platform.processes.private_files import keep_files_private
    from tightship_platform.tasks.worker import run_beat

    keep_files_private()
    sys.exit(run_beat(settings))


def _end_quickly_on_sigterm() -> None:
    # Celery reads this at import. Without it SIGTERM waits for the running task, up to its time limit of minutes;
    # with it, the task has `worker_soft_shutdown_timeout` seconds and its message goes back to the broker.
    os.environ.setdefault("REMAP_SIGTERM", "SIGQUIT")
