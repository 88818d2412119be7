"""The parts of an installation, each a process that meets its own clock and disk, and what can happen to one."""

from __future__ import annotations

import contextlib
import errno
import os
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

CONDITIONS = Path(__file__).with_name("conditions.c")
PART = Path(__file__).with_name("impatient.py")
PAGE_BYTES = 4096
END_S = 20.0


@cache
def conditions_library() -> Path | None:
    """The library that makes a process meet what its page says; None where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="tightship-conditions-"))
    folder.chmod(0o755)  # PostgreSQL runs as another user
    made = folder / "conditions.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(made), str(CONDITIONS), "-ldl"], check=True)
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

    def __post_init__(self) -> None:
        self._page = self.folder / f"{self.name}.conditions"
        self._page.write_bytes(bytes(PAGE_BYTES))
        self._page.chmod(0o644)
        self._offset_s, self._error, self._at_reading, self._place = 0, 0, False, ""
        library = conditions_library()
        if library is not None:
            self.environ = self.environ | {"LD_PRELOAD": str(library), "CHAOS_CONDITIONS": str(self._page)}

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

    def ask_to_end(self) -> None:
        """Begin its end."""
        if self.process is not None and self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.process.send_signal(signal.SIGINT if self.name == "postgres" else signal.SIGTERM)

    def end(self) -> None:
        """End it in peace, or else without."""
        if self.process is None:
            return
        self.ask_to_end()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def set_clock(self, offset_s: int) -> None:
        """Step its clock to so much before or after the true time."""
        self._offset_s = offset_s
        self._tell()

    def fill_disk(self, place: Path) -> None:
        """Let there be no room below that path: nothing grows there, and nothing new can be made."""
        self._error, self._at_reading, self._place = errno.ENOSPC, False, str(place)
        self._tell()

    def break_disk(self, place: Path) -> None:
        """Let everything below that path fail, reading included."""
        self._error, self._at_reading, self._place = errno.EIO, True, str(place)
        self._tell()

    def mend_disk(self) -> None:
        """Let the disk be well again."""
        self._error, self._at_reading, self._place = 0, False, ""
        self._tell()

    def _tell(self) -> None:
        page = struct.pack("qii", self._offset_s * NS_PER_S, self._error, self._at_reading) + self._place.encode()
        with self._page.open("r+b") as file:  # never shorter, as it is mapped
            file.write(page.ljust(PAGE_BYTES, b"\0"))


def tightship(*arguments: str) -> list[str]:
    """A command of ours, less patient than usual."""
    return [sys.executable, str(PART), *arguments]


def wait_until(what: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it became true in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if what():
            return True
        time.sleep(0.2)
    return what()
