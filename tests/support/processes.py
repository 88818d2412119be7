"""Runs `tightship …` as a real process, listens to what it says, and ends it whatever happens."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping, Sequence

import httpx
import psutil
from waiting import PATIENCE_S
from warm_tightship import Forked, run_forked

from tightship_platform.settings import Settings, load_settings
from tightship_platform.token_file import LocalUser

Ended = subprocess.CompletedProcess[str]


def tightship(environ: Mapping[str, str], *arguments: str, input: str | None = None) -> Ended:
    """Run a command to its end."""
    return run_forked(*arguments, env=environ, timeout=PATIENCE_S, input=input)


def at_once(imports: str, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in four processes that begin at the same moment, forks of one that has the imports.

    :returns: of all; its return code is 0 where each of theirs is.
    """
    script = (
        f"import os, sys, traceback\n{imports}\nwait, go = os.pipe()\nfor _ in range(4):\n    if not os.fork():\n"
        f"        os.close(go); os.read(wait, 1)\n        try:\n            {code}\n        except BaseException:\n"
        "            traceback.print_exc()\n            os._exit(1)\n        os._exit(0)\n"
        "os.close(go)\nsys.exit(any([os.wait()[1] for _ in range(4)]))"
    )
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


class Running:
    """A process and its output, line by line."""

    process: subprocess.Popen[str] | Forked

    def __init__(
        self, environ: Mapping[str, str], *arguments: str, command: Sequence[str] = (), cold: bool = False
    ) -> None:
        """Start it.

        :param command: another one than `tightship`.
        :param cold: a start that imports what it needs, as a user's.
        """
        if cold:
            command = (sys.executable, "-m", "tightship_platform.cli", *arguments)
        env = dict(environ) | {"PYTHONUNBUFFERED": "1"}
        out, err = subprocess.PIPE, subprocess.STDOUT
        self.process = (
            subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, text=True, start_new_session=True
            )
            if command
            else Forked(*arguments, env=env, stdout=out, stderr=err, start_new_session=True)
        )
        self.lines: list[str] = []
        self._unheard: list[str] = []
        self._lines: queue.Queue[str] = queue.Queue()
        self._pump = threading.Thread(target=self._read, daemon=True)
        self._pump.start()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        family = self.family() if self.process.poll() is None else []
        for member in family:
            try:
                member.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))

    def family(self) -> list[psutil.Process]:
        """The process and all below it."""
        top = psutil.Process(self.process.pid)
        return [top, *top.children(recursive=True)]

    def hear(self, words: str) -> str:
        """The next line with these words that no earlier call returned; parts speak in any order."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for line in self._unheard:
                if words in line:
                    self._unheard.remove(line)
                    return line
            try:
                line = self._lines.get(timeout=1.0)
            except queue.Empty:
                ended = self.process.poll() is not None and not self._pump.is_alive()
                if ended or time.monotonic() > deadline:
                    raise AssertionError(f"never heard {words!r}; heard: {self.lines}") from None
                continue
            self.lines.append(line)
            self._unheard.append(line)

    def output(self) -> str:
        """Everything that was said until its end."""
        self.process.wait(PATIENCE_S)
        self._pump.join(PATIENCE_S)
        return self.output_so_far()

    def output_so_far(self) -> str:
        """Everything that was said until now."""
        while not self._lines.empty():
            self.lines.append(self._lines.get())
        return "\n".join(self.lines)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal it; its exit code."""
        os.kill(self.process.pid, number)
        return self.process.wait(PATIENCE_S)


class Own(httpx.Auth):
    """The token of a home's user, for their own server."""

    def __init__(self, settings: Settings) -> None:
        self._user = LocalUser(settings)

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response]:
        """Add it, where there is one."""
        url = request.url
        if token := self._user.token(url.host, url.port or (443 if url.scheme == "https" else 80)):
            request.headers["authorization"] = f"Bearer {token}"
        yield request


def own(environ: Mapping[str, str]) -> Own:
    """How the user of an installation proves to their server who they are."""
    return Own(load_settings(environ))


def answers(url: str) -> bool:
    """Whether a server is well."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/api/v1/health", timeout=5):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return False
