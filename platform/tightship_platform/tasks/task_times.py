"""How many tasks ended and how long they took, over all processes of a worker.

Tasks run in processes that come and go, and the worker's own process answers for them. So they count in memory that all
of them share, under a lock of the kernel's, which is free again when its holder is killed.
"""

from __future__ import annotations

import bisect
import fcntl
import mmap
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tightship_platform.processes.metrics import FAMILIES, Figure, Histogram

_FAMILY = FAMILIES["tightship_task_seconds"]
_ROW = 2 + len(_FAMILY.bounds) + 2
"""Ended, failed, then the buckets and the sum of a histogram."""


class TaskTimes:
    """Make it before the processes are forked."""

    def __init__(self, tasks: Sequence[str]) -> None:
        self.tasks = sorted(tasks)
        self._memory = memoryview(mmap.mmap(-1, max(1, len(self.tasks)) * _ROW * 8)).cast("d")
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as this process
        self._began_s: dict[str, float] = {}

    def begin(self, task_id: str) -> None:
        """A task begins in this process."""
        self._began_s = {task_id: time.monotonic()}  # a process has one at a time

    def end(self, task_id: str, task: str, *, failed: bool) -> None:
        """It has ended; one that did not begin here, or that nobody knew at the start, is not counted."""
        began_s = self._began_s.pop(task_id, None)
        if began_s is None or task not in self.tasks:
            return
        took_s, first = time.monotonic() - began_s, self.tasks.index(task) * _ROW
        with self._alone():
            self._memory[first + failed] += 1
            self._memory[first + 2 + bisect.bisect_left(_FAMILY.bounds, took_s)] += 1
            self._memory[first + _ROW - 1] += took_s

    def read(self) -> Iterator[Figure | Histogram]:
        """How many ended, and how long those took that did."""
        for number, task in enumerate(self.tasks):
            row = [float(value) for value in self._memory[number * _ROW : (number + 1) * _ROW]]
            ended, failed, *times = row
            yield Figure(name="tightship_tasks_total", value=ended, labels=(task, "ended"))
            yield Figure(name="tightship_tasks_total", value=failed, labels=(task, "failed"))
            if ended + failed:
                yield Histogram(name=_FAMILY.name, counts=times, labels=(task,))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
