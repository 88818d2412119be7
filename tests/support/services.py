"""Starts the real servers that tests need: PostgreSQL, Redis and Prometheus on free ports, in their own folders.

They die with the test process, whatever becomes of it. PostgreSQL refuses to run as root, so then it runs as another
user of the system.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import site
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_S = 60.0
"""How long a server may take to accept connections (initdb included, on a busy machine)."""


class Unavailable(Exception):
    """This machine cannot run the server; the message says why."""


def free_port() -> int:
    """A TCP port on the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def find_postgres() -> Path:
    """The folder with initdb and postgres: PATH, Debian's versioned folders (newest first), a wheel.

    :raises Unavailable: there is none.
    """
    candidates = [Path(d) for d in os.environ.get("PATH", "").split(os.pathsep) if d]
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)
    for packages in site.getsitepackages():
        candidates += sorted(Path(packages).glob("*/pginstall/bin"))
    for folder in candidates:
        if (folder / "initdb").is_file() and (folder / "postgres").is_file():
            return folder
    raise Unavailable("no PostgreSQL here (initdb and postgres); `make test` installs it where it can")


def _version(folder: Path) -> int:
    return int(folder.parent.name) if folder.parent.name.isdigit() else 0


@contextmanager
def postgres_server() -> Iterator[str]:
    """A new PostgreSQL cluster; yields the SQLAlchemy URL of its maintenance database.

    :raises Unavailable: no PostgreSQL, or it does not start.
    """
    binaries = find_postgres()
    folder = Path(tempfile.mkdtemp(prefix="tightship-pg-"))
    account = unprivileged() if os.getuid() == 0 else {}
    if account:
        os.chown(folder, account["user"], account["group"])
    data = folder / "data"
    try:
        made = subprocess.run(
            [
                binaries / "initdb",
                "-D",
                data,
                "-U",
                "tightship",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--locale=C",
                "--no-sync",
            ],
            capture_output=True,
            text=True,
            cwd=folder,
            **account,
        )
        if made.returncode:
            raise Unavailable(f"initdb failed: {made.stderr.strip()[-300:]}")
        port = free_port()
        options = {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": "",
            "fsync": "off",
            "synchronous_commit": "off",
            "full_page_writes": "off",
            "max_connections": 200,
            "shared_buffers": "64MB",
            # Hundreds of databases that nobody comes back to: it would look after one every few hundred milliseconds.
            "autovacuum": "off",
            "wal_level": "minimal",
            "max_wal_senders": 0,
        }
        command: list[Any] = [binaries / "postgres", "-D", data]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with _running(command, folder, signal.SIGINT, account) as process:
            url = f"postgresql+psycopg://tightship@127.0.0.1:{port}/postgres"
            _wait(process, folder, lambda: postgres_answers(url))
            yield url
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def redis_server() -> Iterator[str]:
    """A new Redis that keeps nothing on disk, with 512 numbered databases; yields its URL without a number.

    :raises Unavailable: no Redis, or it does not start.
    """
    binary = shutil.which("redis-server") or shutil.which("valkey-server")
    if binary is None:
        raise Unavailable("no redis-server here; `make test` installs it where it can")
    folder = Path(tempfile.mkdtemp(prefix="tightship-redis-"))
    port = free_port()
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    command += ["--databases", "512", "--dir", str(folder)]
    try:
        with _running(command, folder, signal.SIGTERM, {}) as process:
            url = f"redis://127.0.0.1:{port}"
            _wait(process, folder, lambda: redis_answers(url))
            yield url
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def prometheus_server(configuration: str) -> Iterator[str]:
    """A new Prometheus, with this as its prometheus.yml; yields its address.

    :raises Unavailable: no Prometheus, or it does not start.
    """
    binary = shutil.which("prometheus")
    if binary is None:
        raise Unavailable("no prometheus here; `make test` installs it where it can")
    folder = Path(tempfile.mkdtemp(prefix="tightship-prometheus-"))
    (folder / "prometheus.yml").write_text(configuration)
    port = free_port()
    command = [binary, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=1h", "--log.level=warn"]
    try:
        with _running(command, folder, signal.SIGTERM, {}) as process:
            url = f"http://127.0.0.1:{port}"
            _wait(process, folder, lambda: prometheus_answers(url))
            yield url
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def unprivileged() -> dict[str, Any]:
    """Whom PostgreSQL runs as where root starts it, as `subprocess` takes it."""
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise Unavailable("PostgreSQL refuses to run as root and this system has neither user postgres nor nobody")


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """In a child: end with the process that started it."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def _running(command: list[Any], folder: Path, stop: signal.Signals, account: dict[str, Any]) -> Iterator[Any]:
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,  # noqa: PLW1509  (one system call through a library that is loaded already)
            **account,
        )
    try:
        yield process
    finally:
        process.send_signal(stop)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], folder: Path, answers: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not answers():
        if process.poll() is not None or time.monotonic() > deadline:
            tail = (folder / "server.log").read_text(errors="replace")[-500:]
            raise Unavailable(f"{process.args[0]} does not start: {tail.strip()}")  # type: ignore[index]
        time.sleep(0.05)


def postgres_answers(url: str) -> bool:
    """Does it take connections?"""
    import psycopg

    try:
        psycopg.connect(url.replace("+psycopg", ""), connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def redis_answers(url: str) -> bool:
    """Does it take connections?"""
    import redis

    try:
        with redis.Redis.from_url(url) as client:
            return bool(client.ping())
    except redis.ConnectionError:
        return False


def prometheus_answers(url: str) -> bool:
    """Is it ready?"""
    import httpx

    try:
        return httpx.get(f"{url}/-/ready", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
