"""`tightship …` as a fork of a Python that has imported its parts, which are most of what a start costs.

Such a process is no child of whoever asks for it; `Forked` is what `subprocess.Popen` is for one. Else it is as any
other: environment, folder, output, session, signals, exit code. What a start imports, and when, tests see that start
`python -m tightship_platform.cli` (test_commands_server.py, test_commands_up.py, test_cli.py).
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import IO, Any

from warm_python import send_command, warm_python


@cache
def warm_tightship() -> tuple[str, ...]:
    """Stands for `tightship` in a command; its last words are the socket of the one such Python of this process, and a
    script."""
    stack = ExitStack()
    atexit.register(stack.close)
    python = stack.enter_context(warm_python("tightship_parts"))
    script = Path(python[-1]).with_name("tightship.py")
    script.write_text("from tightship_platform.cli import main\nmain()\n")
    return *python, str(script)


def _output(given: int | IO[Any], made: list[int]) -> tuple[int, IO[str] | None]:
    """What a process writes to, and where that is read; `made` gets the end of a pipe that is its alone."""
    if given != subprocess.PIPE:
        return (given if isinstance(given, int) else given.fileno()), None
    ours, theirs = os.pipe()
    made.append(theirs)
    return theirs, os.fdopen(ours, encoding="utf-8")


class Forked:
    """A process that runs a command of `tightship`."""

    def __init__(
        self,
        *arguments: str,
        env: Mapping[str, str],
        stdout: int | IO[Any],
        stderr: int | IO[Any],
        stdin: int | None = None,
        cwd: str | os.PathLike[str] | None = None,
        start_new_session: bool = False,
        script: Path | None = None,
    ) -> None:
        """Start it. Outputs as for Popen, as text.

        :param script: what runs instead of `tightship`.
        """
        *_, path, tightship = warm_tightship()
        command = (str(script or tightship), *arguments)
        self.args = ("tightship" if script is None else str(script), *arguments)
        self.returncode: int | None = None
        theirs: list[int] = []
        out, self.stdout = _output(stdout, theirs)
        err, self.stderr = (out, None) if stderr == subprocess.STDOUT else _output(stderr, theirs)
        self._there = socket.socket(socket.AF_UNIX)
        self._there.connect(path)
        descriptors = (out, err) if stdin is None else (out, err, stdin)
        send_command(self._there, command, env, descriptors, cwd=str(cwd or Path.cwd()), session=start_new_session)
        for descriptor in theirs:
            os.close(descriptor)
        self._said = self._there.makefile()
        self.pid = int(self._said.readline())
        try:
            self._pidfd: int | None = os.pidfd_open(self.pid)
        except ProcessLookupError:
            self._pidfd = None

    def poll(self) -> int | None:
        """The exit code, once it has ended."""
        if self.returncode is None and select.select([self._there], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code.

        :raises subprocess.TimeoutExpired: it goes on.
        """
        if self.returncode is None:
            if not select.select([self._there], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def _end(self) -> None:
        self.returncode = os.waitstatus_to_exitcode(int(self._said.readline()))
        self._there.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def send_signal(self, number: int) -> None:
        """Nothing, if it has ended."""
        if self.poll() is None and self._pidfd is not None:
            try:
                signal.pidfd_send_signal(self._pidfd, number)
            except ProcessLookupError:
                return

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it writes until its end."""
        written = ["", ""]

        def read(number: int, pipe: IO[str]) -> None:
            with pipe:
                written[number] = pipe.read()

        pipes = [(number, pipe) for number, pipe in enumerate((self.stdout, self.stderr)) if pipe is not None]
        readers = [threading.Thread(target=read, args=one, daemon=True) for one in pipes]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return written[0], written[1]


def run_forked(
    *arguments: str,
    env: Mapping[str, str],
    timeout: float,
    input: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """A command to its end, which is killed where it takes too long.

    :param timeout: s.
    :raises subprocess.TimeoutExpired: it took longer.
    """
    source = None
    if input is not None:
        source, sink = os.pipe()
        os.write(sink, input.encode())  # short: it fits into the pipe
        os.close(sink)
    try:
        process = Forked(*arguments, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=source, cwd=cwd)
    finally:
        if source is not None:
            os.close(source)
    try:
        out, err = process.communicate(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(process.args, process.wait(), out, err)
