"""Why a job ended: the uncaught exception of one of its processes, and what the kernel killed for lack of memory."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tightship_collectors.jobs.control_file import FOLDER, read_error
from tightship_collectors.jobs.ranks import MAX_FILES
from tightship_platform import validation
from tightship_platform.units import NS_PER_S
from tightship_platform.validation import ERROR_MAX

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
        self._files = [
            group / names.events for names, groups in _memory_groups(root) for group in (groups[0], groups[-1])
        ]
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


def memory_limit(root: Path = Path("/")) -> int | None:
    """The tightest memory limit of this process's control group and those above it, in bytes; None: there is none."""
    found = [
        int(text)
        for names, groups in _memory_groups(root)
        for group in groups
        if re.fullmatch(r"\d{1,19}", text := _text(group / names.limit).strip())
    ]
    return min((limit for limit in found if limit < _NO_LIMIT), default=None)


class _Names(NamedTuple):
    events: str
    limit: str


_V2 = _Names("memory.events", "memory.max")
_V1 = _Names("memory.oom_control", "memory.limit_in_bytes")
_NO_LIMIT = 2**62
"""cgroup v1 writes a number near 2**63 where there is no limit."""


def _memory_groups(root: Path) -> list[tuple[_Names, list[Path]]]:
    """This process's group and those above it up to the root of its namespace, by version, version 2 first."""
    found = []
    for line in _text(root / "proc" / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        inside = PurePosixPath(group.lstrip("/"))
        if ".." in inside.parts:  # outside of the namespace: only its root is seen
            inside = PurePosixPath()
        if number == "0" and not controllers:
            names, base = _V2, root / "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            names, base = _V1, root / "sys/fs/cgroup/memory"
        else:
            continue
        found.append((names, [base / group for group in (inside, *inside.parents)]))
    return sorted(found, key=lambda one: one[0] is _V1)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(65536).decode("ascii", "replace")
    except OSError:
        return ""
