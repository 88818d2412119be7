"""A real worker with tasks that leave traces in a file, for the broker's contract tests: `python broker_worker.py`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

os.environ["REMAP_SIGTERM"] = "SIGQUIT"  # as commands/worker.py does, before Celery is imported

from celery import shared_task
from celery.concurrency.prefork import TaskPool

from tightship_platform.client import request_id
from tightship_platform.settings import load_settings
from tightship_platform.tasks import registry, worker
from tightship_platform.tasks.app import create_celery


def note(path: str, word: str) -> None:
    """Append one line; lines this short are written whole."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{word} {os.getpid()}\n")


@shared_task(name="contract.quick")
def quick(path: str, word: str) -> None:
    note(path, word)


@shared_task(name="contract.id")
def note_id(path: str) -> None:
    note(path, request_id())


@shared_task(name="contract.slow")
def slow(path: str, until: str) -> None:
    """Runs until the file `until` exists."""
    note(path, "begin")
    while not Path(until).exists():
        time.sleep(0.05)
    note(path, "end")


if __name__ == "__main__":
    registry.registered = list  # no tasks but those above, which start sooner than all that the analyzers import
    given = load_settings()
    create_celery(given).conf.worker_soft_shutdown_timeout = 0.5  # there is one application for these settings
    if "--stuck" in sys.argv:  # as when Celery's threads wait for each other at the end

        def wait_for_ever(_pool: TaskPool) -> None:
            time.sleep(3600)

        TaskPool.stop = wait_for_ever
        worker.LAST_RESORT_S = 1.0
    sys.exit(worker.run_worker(given, concurrency=1, beat="--beat" in sys.argv))
