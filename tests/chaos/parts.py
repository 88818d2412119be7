"""The parts of an installation, each a process with its own clock, and what can happen to one."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from services import die_with_parent

from tightship_platform.units import NS_PER_S

CLOCK = Path(__file__).with_name("clock.c")
END_S = 20.0


@cache
def clock_library() -> Path | None:
    """The library that sets the clock of one process; None where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    made = Path(tempfile.mkdtemp(prefix="tightship-clock-")) / "clock.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(made), str(CLOCK)], check=True)
    return made


@dataclass(kw_only=True)
class Part:
    """A process that is there while all is well."""

    name: str
    command: list[str]
    environ: dict[str, str]
    folder: Path
    account: dict[str, object] = field(default_factory=dict)
    answers: Callable[[], bool] = lambda: True
    process: subprocess.Popen[bytes] | None = None

    @property
    def clock_file(self) -> Path:
        return self.folder / f"{self.name}.clock"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def start(self) -> None:
        """Start it where it does not run."""
        if self.process is not None and self.process.poll() is None:
            return
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=self.environ,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                preexec_fn=die_with_parent,  # noqa: PLW1509  (one system call through a library that is loaded already)
                **self.account,  # type: ignore[call-overload]
            )

    def tree(self) -> Iterator[int]:
        """Its process and all below, parents first."""
        if self.process is None or self.process.poll() is not None:
            return
        waiting = [self.process.pid]
        while waiting:
            pid = waiting.pop()
            yield pid
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    waiting += map(int, (task / "children").read_text().split())

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all of it."""
        for pid in list(self.tree()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """As `kill -9` of all of it."""
        self.send(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def end(self) -> None:
        """End it in peace, or else without."""
        if self.process is None:
            return
        self.send(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def fill_disk(self, *, full: bool) -> None:
        """While it is full, no file that it writes grows, as on a full disk."""
        for pid in list(self.tree()):
            with contextlib.suppress(ProcessLookupError):
                hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (1 if full else hard, hard))

    def set_clock(self, offset_s: int) -> None:
        """Step its clock to so much before or after the true time."""
        with self.clock_file.open("r+b") as file:  # never shorter, as it is mapped
            file.write(struct.pack("q", offset_s * NS_PER_S))


def with_clock(environ: dict[str, str], clock_file: Path) -> dict[str, str]:
    """The environment of a process whose clock that file sets."""
    library = clock_library()
    if library is None:
        return environ
    clock_file.write_bytes(struct.pack("q", 0))
    return environ | {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(clock_file)}


def tightship(*arguments: str) -> list[str]:
    """A command of ours."""
    return [sys.executable, "-m", "tightship_platform.cli", *arguments]


def wait_until(what: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it became true in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if what():
            return True
        time.sleep(0.2)
    return what()
