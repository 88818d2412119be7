"""`tightship up`: the parts as child processes, started, watched, restarted and ended together.

[Note: No part outlives the supervisor]
Each part has its own session, so that Ctrl-C reaches the supervisor alone, which ends them in order. Should the
supervisor itself be killed, the kernel kills the parts (PR_SET_PDEATHSIG), and the worker's pool processes follow the
worker (worker_process.follow_parent).
"""

from __future__ import annotations

import ctypes
import functools
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

from tightship_platform.errors import TightshipError
from tightship_platform.processes.log_file import PartLog

FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
HEALTHY_S = 60.0
"""A part that lived this long starts again with the first back-off; before, exit code 2 says that it never will."""
FLUSH_S = 3.0
KILL_AFTER_S = 10.0
CONFIGURATION_ERROR = 2
WAIT_S = 15.0
_PR_SET_PDEATHSIG = 1


class PartFailed(TightshipError):
    """A part cannot run as it is configured; its own line says why."""


@dataclass(kw_only=True)
class Part:
    """A child process and its history."""

    name: str
    command: Sequence[str]
    waits: bool = False
    """Started when `ready` says so, at the latest after `WAIT_S`."""
    ends_within_s: float = field(default_factory=lambda: KILL_AFTER_S)
    """Killed when it has not ended this long after SIGTERM."""
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    """Monotonic seconds."""
    starts: int = 0
    backoff_s: float = FIRST_BACKOFF_S
    restart_at: float | None = None
    """Monotonic seconds; None: it runs."""
    log: PartLog = field(init=False)


class Supervisor:
    """Runs parts until asked to stop.

    :param say: writes one line for the user.
    """

    def __init__(self, parts: Sequence[Part], *, log_dir: Path, say: Callable[[str], None]) -> None:
        self.parts = list(parts)
        self._say = say
        self._stops = 0
        self._selector = selectors.DefaultSelector()
        self._libc = ctypes.CDLL(None, use_errno=True)  # before any fork: the child may only call it
        width = max(len(part.name) for part in parts)
        for part in self.parts:
            part.log = PartLog(log_dir / f"{part.name}.log", functools.partial(self._echo, f"{part.name:<{width}}"))

    def run(self, ready: Callable[[], bool] = lambda: True) -> None:
        """Start all parts and keep them running until SIGINT, SIGTERM or SIGHUP; then end them.

        :param ready: asked a few times a second whether the parts that wait may start.
        :raises PartFailed: a part ended with a configuration error right after its first start.
        """
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        old_wake = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        # SIGCHLD needs its own handler, or the wake-up pipe stays silent.
        handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {
            signal.SIGINT: self._on_stop,
            signal.SIGTERM: self._on_stop,
            signal.SIGHUP: self._on_stop,
            signal.SIGCHLD: lambda *_: None,
        }
        old = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        self._selector.register(wake_read, selectors.EVENT_READ, None)
        try:
            begin = time.monotonic()
            for part in self.parts:
                if part.waits:
                    part.restart_at = begin + WAIT_S
                else:
                    self._start(part)
            while not self._stops:
                self._wait(0.25)
                self._reap()
                if ready():
                    for part in self.parts:
                        if part.starts == 0:
                            self._start(part)
        finally:
            self._end_all()
            for number, handler in old.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_wake)
            os.close(wake_read)
            os.close(wake_write)
            self._selector.close()

    def _echo(self, name: str, line: str) -> None:
        self._say(f"{name} | {line}")

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stops += 1

    def _start(self, part: Part) -> None:
        libc, parent = self._libc, os.getpid()

        def die_with_parent() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it was gone before the line above
                os._exit(1)

        part.started = time.monotonic()
        part.starts += 1
        part.restart_at = None
        part.process = subprocess.Popen(
            list(part.command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # this process has no other thread
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        output = _pipe(part.process)
        os.set_blocking(output.fileno(), False)
        self._selector.register(output, selectors.EVENT_READ, (part, output))

    def _wait(self, seconds: float) -> None:
        """Pass on what the parts write, until something happens or the time is over."""
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                os.read(key.fd, 4096)
            else:
                self._read(*key.data)

    def _read(self, part: Part, output: IO[bytes]) -> None:
        try:
            data = os.read(output.fileno(), 65536)
        except BlockingIOError:
            return
        if data:
            part.log.write(data)
        else:
            self._selector.unregister(output)
            part.log.end_line()

    def _reap(self) -> None:
        now = time.monotonic()
        for part in self.parts:
            if part.restart_at is not None:
                if now >= part.restart_at:
                    self._start(part)
            elif part.process is not None and part.process.poll() is not None:
                self._ended(part, part.process, now)

    def _ended(self, part: Part, process: subprocess.Popen[bytes], now: float) -> None:
        lived = now - part.started
        self._drain(part, process)
        if process.returncode == CONFIGURATION_ERROR and part.starts == 1 and lived < HEALTHY_S:
            part.process = None
            raise PartFailed(f"The {part.name} cannot start: {part.log.last_line.removeprefix('tightship: ')}")
        if lived >= HEALTHY_S:
            part.backoff_s = FIRST_BACKOFF_S
        part.restart_at = now + part.backoff_s
        self._say(
            f"The {part.name} (pid {process.pid}) {_how(process.returncode)} after {lived:.0f} s; "
            f"starting it again in {part.backoff_s:g} s"
        )
        part.backoff_s = min(MAX_BACKOFF_S, 2 * part.backoff_s)

    def _drain(self, part: Part, process: subprocess.Popen[bytes]) -> None:
        """Pass on what an ended part has left in its pipe. Its own children may hold the pipe open: never wait."""
        output = _pipe(process)
        while not output.closed and output in self._selector.get_map():
            before = part.log.written
            self._read(part, output)
            if part.log.written == before:
                break
        if not output.closed and output in self._selector.get_map():
            self._selector.unregister(output)
            part.log.end_line()
        output.close()

    def _end_all(self) -> None:
        """SIGTERM to all, SIGKILL to those that are still there after `ends_within_s` or at a second signal.

        The last part goes first and gets `FLUSH_S`: the agent still has the server to deliver to.
        """
        alive = [(part, part.process) for part in self.parts if part.process is not None and part.restart_at is None]
        begun = time.monotonic()

        def ending() -> bool:
            lasted = time.monotonic() - begun
            return any(process.poll() is None and lasted < part.ends_within_s for part, process in alive)

        if alive:
            last = alive[-1][1]
            last.terminate()
            flushed = time.monotonic() + FLUSH_S
            while last.poll() is None and time.monotonic() < flushed and self._stops < 2:
                self._wait(0.1)
        for _, process in alive[:-1]:
            process.terminate()
        while ending() and self._stops < 2:
            self._wait(0.1)
        for part, process in alive:
            if process.poll() is None:
                self._say(f"The {part.name} (pid {process.pid}) has not ended; killing it")
                os.killpg(process.pid, signal.SIGKILL)  # with its pool processes; unreaped, so the id is still its own
                process.wait()
            self._drain(part, process)
        for part in self.parts:
            part.log.close()


def _pipe(process: subprocess.Popen[bytes]) -> IO[bytes]:
    if process.stdout is None:
        raise AssertionError("every part is started with a pipe")
    return process.stdout


def _how(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def part_command(*arguments: str) -> list[str]:
    """The command line of a part: the same Python, the same tightship."""
    return [sys.executable, "-m", "tightship_platform.cli", *arguments]
