"""The demo's own platform, `tightship up` in a folder that nothing else uses, and the environment of its processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tightship_platform.client import ApiClient
from tightship_platform.errors import ServerUnreachable, TightshipError
from tightship_platform.settings import Settings


def environment(settings: Settings) -> dict[str, str]:
    """Of the demo's processes: nothing of the user's installation."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("TIGHTSHIP_")}
    env["TIGHTSHIP_HOME"] = str(settings.home)
    env["TIGHTSHIP_SERVER"] = settings.server
    env["TIGHTSHIP_RUNTIME_DIR"] = str(settings.runtime_dir)
    return env


class Platform:
    """`tightship up` as a child process."""

    def __init__(self, settings: Settings, log: Path, *, step_period_s: int | None = None) -> None:
        self._log = log
        port = settings.server.rpartition(":")[2]
        env = environment(settings)
        if step_period_s is not None:
            env["TIGHTSHIP_STEP_PERIOD_S"] = str(step_period_s)
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tightship_platform.cli", "up", "--port", port],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def check(self) -> None:
        """:raises TightshipError: it has ended."""
        if self._process.poll() is not None:
            lines = self._log.read_text(errors="replace").strip().splitlines() or ["no output"]
            raise TightshipError(
                f"The platform ended with code {self._process.returncode}: {lines[-1]} (see {self._log})"
            )

    def wait_until_up(self, api: ApiClient, limit_s: float = 60.0) -> None:
        """Until its server answers.

        :raises TightshipError: it has ended, or does not answer in time.
        """
        deadline = time.monotonic() + limit_s
        while True:
            self.check()
            try:
                api.get("/health")
            except ServerUnreachable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return

    def wait(self) -> None:
        """Until it ends, or Ctrl-C."""
        self._process.wait()

    def stop(self) -> None:
        """End it, whatever it does."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()


def job_environment(settings: Settings) -> dict[str, str]:
    """Of a job. One core stays free for the platform; on a small machine OpenMP's spinning threads would fight it."""
    env = environment(settings)
    env.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 2) // 2)))
    return env


def job_command(workflow: str, team: str, script: Path, seconds: int) -> list[str]:
    """The command that launches a job."""
    command = [sys.executable, "-m", "tightship_platform.cli", "run", "--workflow", workflow, "--team", team]
    return [*command, "--label", "demo=yes", "--", sys.executable, str(script), "--seconds", str(seconds)]
