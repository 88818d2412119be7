"""Why a job ended: the uncaught exception of one of its processes, and what the kernel killed for lack of memory."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from tightship_collectors.jobs.control_file import FOLDER, read_error
from tightship_collectors.jobs.ranks import MAX_FILES
from tightship_platform import validation
from tightship_platform.units import NS_PER_S
from tightship_platform.wire import ERROR_MAX

SAME_END_NS = 60 * NS_PER_S
"""Ranks follow each other into the end: their starter gives them 30 s (torchrun), a collective that lost one may wait
longer. What failed earlier than this before the last of them, the job survived."""


def read_job_error(run_dir: Path) -> str | None:
    """`type: message` of the exception that ended the job, on one line; None where none is known.

    Of several, the first of those that ended together: the others fail because it did. A starter of ranks has failed
    because of a rank, so what it says counts only where no rank said anything.
    """
    try:
        uid = os.lstat(run_dir).st_uid
        with os.scandir(run_dir / FOLDER) as entries:
            names = [entry.name for _, entry in zip(range(MAX_FILES), entries, strict=False)]
    except OSError:
        return None
    found = [read_error(run_dir / FOLDER / name, uid=uid) for name in names if name.isascii() and name.isdigit()]
    errors = [error for error in found if error is not None]
    errors = [error for error in errors if not error.is_launcher] or errors
    if not errors:
        return None
    last_ns = max(error.time_ns for error in errors)
    first = min((e for e in errors if e.time_ns >= last_ns - SAME_END_NS), key=lambda error: error.time_ns)
    return validation.line(first.text, ERROR_MAX) or None


class OomKills:
    """Counts what the kernel kills for lack of memory in this process's control group, from now on.

    The kernel's own counters: `oom_kill` of memory.events (cgroup v2, which counts groups below, too) or of
    memory.oom_control (cgroup v1); https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._files = _counters(root)
        self._before = self._read()

    def count(self) -> int | None:
        """Processes killed since; None where the kernel does not tell."""
        now = self._read()
        return None if now is None or self._before is None else max(0, now - self._before)

    def _read(self) -> int | None:
        for file in self._files:
            found = re.search(r"^oom_kill (\d{1,18})$", _text(file), re.MULTILINE)
            if found:
                return int(found[1])
        return None


def _counters(root: Path) -> list[Path]:
    """Where this process's group counts, cgroup v2 first; the root of its namespace where its group is not seen."""
    found = []
    for line in _text(root / "proc" / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        inside = PurePosixPath(group.lstrip("/"))
        inside = PurePosixPath() if ".." in inside.parts else inside
        if number == "0" and not controllers:
            base = root / "sys/fs/cgroup"
            found += [base / inside / "memory.events", base / "memory.events"]
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            found += [base / inside / "memory.oom_control", base / "memory.oom_control"]
    return sorted(found, key=lambda path: path.name)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(65536).decode("ascii", "replace")
    except OSError:
        return ""
