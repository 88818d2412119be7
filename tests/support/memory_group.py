"""A control group with its own memory limit, for jobs that are to die of it, or to live within it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import PATIENCE_S

VERSIONS = (
    (
        Path("/sys/fs/cgroup/memory"),
        "memory.limit_in_bytes",
        "memory.memsw.limit_in_bytes",
        "memory.max_usage_in_bytes",
    ),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.swap.max", "memory.peak"),
)


class MemoryGroup:
    """Without swap."""

    def __init__(self, path: Path, limit: str, swap: str, peak: str) -> None:
        self.path, self._limit, self._swap, self._peak = path, path / limit, path / swap, path / peak

    def limit(self, size_bytes: int) -> None:
        """Allow so much from now on."""
        swap = self._swap.exists()
        self._limit.write_text(str(size_bytes))
        if swap:
            self._swap.write_text("0" if self._swap.name == "memory.swap.max" else str(size_bytes))

    @property
    def peak_bytes(self) -> int:
        """The most that was ever in use; skips where the kernel does not tell."""
        if not self._peak.exists():
            pytest.skip(f"{self._peak.name} needs Linux 5.19")
        return int(self._peak.read_text())

    def inside(self, *command: str) -> list[str]:
        """The command line that runs a command in the group."""
        return ["sh", "-c", f'echo $$ > {self.path / "cgroup.procs"}; exec "$@"', "sh", *command]

    def remove(self) -> None:
        """Once its processes are gone: a killed one stays in it for a moment, and its memory for another."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                if not (self.path / "cgroup.procs").read_text().strip():
                    self.path.rmdir()
                    return
            except OSError:
                if time.monotonic() > until:
                    raise
            if time.monotonic() > until:
                raise TimeoutError(f"{self.path} still has processes: {(self.path / 'cgroup.procs').read_text()!r}")
            time.sleep(0.05)


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[MemoryGroup]:
    """A group; skips where this user may make none."""
    for base, *names in VERSIONS:
        group = MemoryGroup(base / f"tightship-test-{os.getpid()}", *names)
        try:
            group.path.mkdir()
        except OSError:
            continue
        try:
            group.limit(limit_bytes)
        except OSError:
            group.remove()
            continue
        try:
            yield group
        finally:
            group.remove()
        return
    pytest.skip("no control group with a memory limit can be made here (needs root and a writable /sys/fs/cgroup)")
