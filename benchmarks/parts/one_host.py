"""A server, an agent and a job on this machine, each started as its user would, for benchmarks that watch them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tightship_platform.client import ApiClient
from tightship_platform.errors import TightshipError
from tightship_platform.settings import Settings, load_settings

PATIENCE_S = 120.0
END_S = 30.0


@dataclass(kw_only=True)
class OneHost:
    """What runs, and how to ask it."""

    env: dict[str, str]
    log: Path
    agent_pid: int = 0
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def settings(self) -> Settings:
        """The settings of all parts."""
        return load_settings(self.env)

    def start(self, *arguments: str) -> int:
        """Start `tightship ARGUMENTS`; its pid."""
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "tightship_platform.cli", *arguments]
            self.children.append(subprocess.Popen(command, env=self.env, stdout=log, stderr=log))
        return self.children[-1].pid

    def train(self, workflow: str, *command: str) -> str:
        """Launch a job under `tightship run`; the key of its run once it makes steps."""
        self.start("run", "--workflow", workflow, "--", sys.executable, *command)
        runs = self.wait_for(f"/runs?workflow={workflow}", lambda runs: runs and (runs[0]["steps"] or 0) > 0)
        return str(runs[0]["run"])

    def ask(self, path: str) -> Any:
        """What the server answers."""
        with ApiClient(self.settings) as api:
            return api.get(path)

    def wait_for(self, path: str, good: Callable[[Any], Any]) -> Any:
        """Ask the server until the answer is good."""
        deadline = time.monotonic() + PATIENCE_S
        with ApiClient(self.settings) as api:
            while time.monotonic() < deadline:
                try:
                    answer = api.get(path)
                    if good(answer):
                        return answer
                except TightshipError:
                    pass
                time.sleep(0.2)
        raise SystemExit(f"{path} gave no good answer in time")


@contextmanager
def one_host(folder: Path) -> Iterator[OneHost]:
    """Server and agent in a home below `folder`; all that was started ends with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {k: v for k, v in os.environ.items() if not k.startswith("TIGHTSHIP_")} | {
        "TIGHTSHIP_HOME": str(folder / "home"),
        "TIGHTSHIP_RUNTIME_DIR": f"/tmp/tsb-{os.getpid()}",
        "TIGHTSHIP_SERVER": f"http://127.0.0.1:{port}",
    }
    host = OneHost(env=env, log=folder / "parts.log")
    try:
        host.start("server", "--port", str(port))
        host.wait_for("/health", bool)
        host.agent_pid = host.start("agent")
        yield host
    except BaseException:
        sys.stderr.write(host.log.read_text())
        raise
    finally:
        for child in reversed(host.children):
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
                child.wait(END_S)
        shutil.rmtree(env["TIGHTSHIP_RUNTIME_DIR"], ignore_errors=True)
