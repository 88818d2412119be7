"""Processes of a run that compute with torch and never ran the code that `tightship run` gives them.

That code comes by PYTHONPATH, as a sitecustomize. Options of Python, an emptied environment and interpreters of their
own kind shut it out; the process then has no control file, counts no steps, has no exit guard and cannot be recorded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tightship_collectors.jobs.ranks import ancestors_of

LIBRARY = b"/libtorch_cpu.so"
"""Mapped by every process that has torch, with or without a GPU."""
PATIENCE_S = 20.0
"""A control file is made once torch has been imported, which takes seconds from a cold disk."""
PATIENCE_CPU_S = 10.0
"""The same in processor time of the process: where many share few cores, an import takes minutes."""
MAX_BYTES = 8 * 1024 * 1024
"""Of a process's list of mappings, or its environment, no more is read."""
_OPTIONS_WITH_VALUE = "WX"
_SHUTS_OUT = "IES"


@dataclass(frozen=True, kw_only=True)
class Unarmed:
    """Such a process."""

    pid: int
    why: str
    """What shuts our code out, and what to do; a sentence without its full stop."""


class UnarmedWatch:
    """Finds them among the processes of one run, by a few looks."""

    def __init__(self) -> None:
        self._seen_s: dict[int, tuple[float, float]] = {}
        """pid → when it was first seen, and the processor time that it had used by then."""

    def look(self, pids: Iterable[int], armed: Collection[int]) -> Unarmed | None:
        """The first one, if there is any.

        :param pids: the live processes of the run.
        :param armed: those with a control file; what descends from them (loader workers) needs none.
        """
        now_s = time.monotonic()
        for pid in pids:
            if pid in armed or LIBRARY not in _read(pid, "maps") or not ancestors_of(pid).isdisjoint(armed):
                continue
            why = _known_cause(pid)
            if why is None and self._has_had_time(pid, now_s):
                why = (
                    "has loaded torch, but its Python runs no sitecustomize (a frozen or embedded one): "
                    "start the job with an ordinary python"
                )
            if why is not None:
                return Unarmed(pid=pid, why=f"process {pid} {why}")
        return None

    def _has_had_time(self, pid: int, now_s: float) -> bool:
        """To import torch, since it was first seen."""
        used_s = _processor_s(pid)
        first_s, used_first_s = self._seen_s.setdefault(pid, (now_s, used_s))
        return now_s - first_s >= PATIENCE_S and used_s - used_first_s >= PATIENCE_CPU_S


def _processor_s(pid: int) -> float:
    """Processor time that a process has used, in seconds; 0: it is gone."""
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if len(fields) > 12 else 0.0


def _known_cause(pid: int) -> str | None:
    option = _option_of(_read(pid, "cmdline").split(b"\0")[:-1])
    if option is not None:
        return f"runs `python {option}`, which shuts out what `tightship run` adds: start it without {option}"
    if b"TIGHTSHIP_RUN_DIR=" not in b"\0" + _read(pid, "environ"):
        return (
            "was started without the environment of `tightship run` (env -i, sudo, a container): "
            "put `tightship run` behind that, right before python"
        )
    return None


def _option_of(command: list[bytes]) -> str | None:
    """-I, -E or -S where a Python was started with it."""
    if not command or not os.path.basename(command[0]).startswith((b"python", b"pypy")):  # noqa: PTH119 (bytes)
        return None
    words = iter(command[1:])
    for word in words:
        letters = word[1:].decode("latin-1")
        if not word.startswith(b"-") or word.startswith(b"--") or not letters:
            return None
        for at, letter in enumerate(letters):
            if letter in _SHUTS_OUT:
                return f"-{letter}"
            if letter in "cm":  # the rest is the job's
                return None
            if letter in _OPTIONS_WITH_VALUE:
                if at + 1 == len(letters):
                    next(words, None)
                break
    return None


def _read(pid: int, name: str) -> bytes:
    """Contents of /proc/<pid>/<name>; empty when the process is gone or not ours to read."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123 (read in pieces, many a second)
            return file.read(MAX_BYTES)
    except OSError:
        return b""
