"""What a command takes as a whole, with everything that it starts."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

LOOK_EVERY_S = 0.05


@dataclass
class Seen:
    """What was seen of a process and all below it."""

    peak_bytes: int = 0
    cpu_seconds: dict[int, float] = field(default_factory=dict)
    """By process, as last seen."""


def measured(command: list[str | Path]) -> tuple[float, float, int]:
    """(seconds, processor seconds, peak bytes) of a process and what it starts.

    The peak is that of the largest process as the system counts it, or of all together as seen 20 times a second
    (memory that they share counts for each), whichever is more. So are the processor seconds: the system does not count
    those of a process whose own parent has not waited for it, and looking misses the last moment of each.

    :raises subprocess.CalledProcessError: it failed.
    """
    begun = time.perf_counter()
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env=_usual()) as process,
    ):
        ended = threading.Event()
        seen = Seen()
        watch = threading.Thread(target=_watch, args=(process.pid, ended, seen))
        watch.start()
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begun
        ended.set()
        watch.join()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            raise subprocess.CalledProcessError(process.returncode, command, stderr=said.read())
    cpu_seconds = max(used.ru_utime + used.ru_stime, sum(seen.cpu_seconds.values()))
    return seconds, cpu_seconds, max(used.ru_maxrss * 1024, seen.peak_bytes)


def _usual() -> dict[str, str]:
    """Compiled modules are kept, as they are by default: who measures may have asked Python not to."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _watch(pid: int, ended: threading.Event, seen: Seen) -> None:
    while not ended.wait(LOOK_EVERY_S):
        total = 0
        try:
            top = psutil.Process(pid)
            processes = [top, *top.children(recursive=True)]
        except psutil.Error:
            return
        for process in processes:
            try:
                total += process.memory_info().rss
                times = process.cpu_times()
            except psutil.Error:
                continue
            seen.cpu_seconds[process.pid] = times.user + times.system
        seen.peak_bytes = max(seen.peak_bytes, total)
