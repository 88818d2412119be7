"""A server on PostgreSQL, and what it takes of the processor, for benchmarks that put a fleet's load on it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from tightship_platform.api.auth import create_token
from tightship_platform.database.engine import open_database, upgrade
from tightship_platform.settings import Settings, load_settings
from tightship_platform.vocabulary import Scope

START_S = 300.0
_TIGHTSHIP = [sys.executable, "-m", "tightship_platform.cli"]


@dataclass(kw_only=True)
class FleetServer:
    """The server, and who may report to it."""

    process: subprocess.Popen[bytes]
    port: int
    settings: Settings
    tokens: list[str]
    """One of each host, as agents that are enrolled have them."""
    admin: str
    env: dict[str, str]

    def processes(self) -> list[psutil.Process]:
        """Those of the server."""
        return _family(self.process.pid)

    def cpu_s(self) -> float:
        """Processor seconds of the server's processes."""
        return sum(sum(one.cpu_times()[:2]) for one in self.processes())

    def resident_bytes(self) -> int:
        """Memory of the server's processes."""
        return sum(one.memory_info().rss for one in self.processes())


@contextlib.contextmanager
def fleet_server(folder: Path, url: str, *, hosts: int, workers: int = 1) -> Iterator[FleetServer]:
    """`tightship server` on a free port, with PostgreSQL.

    :param hosts: that get a token.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {name: value for name, value in os.environ.items() if not name.startswith("TIGHTSHIP_")} | {
        "TIGHTSHIP_HOME": str(folder),
        "TIGHTSHIP_DATABASE_URL": url,
    }
    settings = load_settings(env)
    upgrade(settings)
    with open_database(settings) as database, database.session() as session:
        scopes = [Scope.INGEST, Scope.CAPTURE]
        tokens = [create_token(session, f"node{number:05d}", scopes) for number in range(hosts)]
        admin = create_token(session, "admin", [Scope.ADMIN])
    command = [*_TIGHTSHIP, "server", "--port", str(port)]
    command += ["--workers", str(workers)] if workers > 1 else []
    log = folder / "server.log"
    with log.open("wb") as said:
        process = subprocess.Popen(command, env=env, stdout=said, stderr=said)
    try:
        deadline_s = time.monotonic() + START_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise SystemExit(f"The server does not start: {log.read_text()[-500:]}")
            time.sleep(0.1)
        yield FleetServer(process=process, port=port, settings=settings, tokens=tokens, admin=admin, env=env)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        said_at_end = log.read_text()
        if process.returncode:
            sys.stderr.write(said_at_end[-2000:])


@contextlib.contextmanager
def worker(server: FleetServer) -> Iterator[psutil.Process]:
    """`tightship worker` beside it, which makes the rollups."""
    with (Path(server.env["TIGHTSHIP_HOME"]) / "worker.log").open("wb") as said:
        process = subprocess.Popen([*_TIGHTSHIP, "worker", "--beat"], env=server.env, stdout=said, stderr=said)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _answers(port: int) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"http://127.0.0.1:{port}/api/v1/live", trust_env=False, timeout=30).is_success
    return False


def _family(pid: int) -> list[psutil.Process]:
    top = psutil.Process(pid)
    return [top, *top.children(recursive=True)]


def family_cpu_s(top: psutil.Process) -> float:
    """Processor seconds of a process and those below it, ended ones included."""
    times = top.cpu_times()
    total = times.user + times.system + times.children_user + times.children_system
    for one in top.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            total += sum(one.cpu_times()[:2])
    return float(total)


def database_cpu_s() -> float:
    """Processor seconds of the PostgreSQL that this program started, connections that have ended included."""
    return sum(family_cpu_s(one) for one in psutil.Process().children() if one.name() == "postgres")
