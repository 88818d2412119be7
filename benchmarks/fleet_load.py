"""What a fleet costs the server: processor time per host and second, how long ingest takes, and whether anything fails.

Starts PostgreSQL and a server, and plays agents on the same machine: hosts of 8 devices at 1 Hz, each with one run of 8
ranks. Every host delivers a batch and a heartbeat every 5 s and asks for leases as an agent does. Processor time is the
system's count for the server's processes and for PostgreSQL's, from the moment at which every host has reported.

    python benchmarks/fleet_load.py [--hosts 200] [--seconds 60] [--workers 1] [--captures] [--json-only]
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from parts.results import keep, options
from parts.simulated_host import Figures, SimulatedHost
from rich.console import Console
from rich.table import Table

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
import services

TARGET_MS = 0.67
TARGET_P99_S = 1.0
START_S = 60.0
SPREAD_S = 5.0
"""Hosts begin evenly within this time, as long as their own period."""


def main() -> int:
    """Run it; 0 when the targets are met."""
    arguments = options(__doc__)
    arguments.add_argument("--hosts", type=int, default=200)
    arguments.add_argument("--seconds", type=float, default=60.0)
    arguments.add_argument("--workers", type=int, default=1)
    arguments.add_argument("--captures", action="store_true", help="ask for a capture of another host every second")
    given = arguments.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with (
            services.postgres_server() as url,
            tempfile.TemporaryDirectory(prefix="ts-bench-") as folder,
            server(Path(folder), url, given.workers) as (process, port, token),
        ):
            figures = asyncio.run(load(process, port, token, given.hosts, given.seconds, captures=given.captures))
    except services.Unavailable as why:
        print(f"not measured: {why}")
        return 0
    result = {"hosts": given.hosts, "seconds": given.seconds, "workers": given.workers, **figures}
    result["within_target"] = bool(
        result["server_ms_per_host_s"] <= TARGET_MS and result["p99_s"] < TARGET_P99_S and not result["errors"]
    )
    keep("fleet_load", result, show, json_only=given.json_only)
    return 0 if result["within_target"] else 1


@contextlib.contextmanager
def server(folder: Path, url: str, workers: int) -> Iterator[tuple[subprocess.Popen[bytes], int, str]]:
    """`tightship server` on a free port, with PostgreSQL; yields its process, its port and a token for agents."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {name: value for name, value in os.environ.items() if not name.startswith("TIGHTSHIP_")} | {
        "TIGHTSHIP_HOME": str(folder),
        "TIGHTSHIP_DATABASE_URL": url,
    }
    tightship = [sys.executable, "-m", "tightship_platform.cli"]
    subprocess.run([*tightship, "db", "upgrade"], env=env, check=True, capture_output=True)
    made = [*tightship, "token", "create", "agents", "--scope", "ingest", "--scope", "capture"]
    token = subprocess.run(made, env=env, check=True, capture_output=True, text=True).stdout.split()[0]
    command = [*tightship, "server", "--port", str(port)]
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
        yield process, port, token
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        sys.stderr.write(log.read_text()[-2000:] if process.returncode else "")


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2):
        return True
    return False


async def load(
    process: subprocess.Popen[bytes], port: int, token: str, count: int, seconds: float, *, captures: bool
) -> dict[str, Any]:
    """Play `count` hosts for this long; the figures."""
    figures = Figures()
    hosts = [SimulatedHost(number, port, token, figures) for number in range(count)]
    tasks = [asyncio.create_task(host.live(SPREAD_S * host.number / count)) for host in hosts]
    try:
        while any(host.beats < 2 for host in hosts):  # each is known then
            await asyncio.sleep(1)
        await asyncio.sleep(SPREAD_S)
        figures.clear()
        server_s, database_s, begun_s = server_cpu(process.pid), database_cpu(), time.monotonic()
        if captures:
            tasks.append(asyncio.create_task(_ask_for_captures(hosts)))
        await asyncio.sleep(seconds)
        took_s = time.monotonic() - begun_s
        server_s, database_s = server_cpu(process.pid) - server_s, database_cpu() - database_s
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    faults = [one for one in ended if isinstance(one, Exception) and not isinstance(one, asyncio.CancelledError)]
    host_s = count * took_s
    rss = sum(one.memory_info().rss for one in _family(process.pid))
    return {
        "server_ms_per_host_s": round(1000 * server_s / host_s, 3),
        "database_ms_per_host_s": round(1000 * database_s / host_s, 3),
        "server_cores": round(server_s / took_s, 3),
        "database_cores": round(database_s / took_s, 3),
        "hosts_of_one_core": int(host_s / server_s) if server_s else None,
        "server_resident_bytes": rss,
        **figures.summary(),
        "faults": [repr(fault) for fault in faults][:5],
    }


async def _ask_for_captures(hosts: list[SimulatedHost]) -> None:
    number = 0
    while True:
        await asyncio.sleep(1)
        await hosts[number % len(hosts)].ask_for_capture()
        number += 1


def _family(pid: int) -> list[psutil.Process]:
    top = psutil.Process(pid)
    return [top, *top.children(recursive=True)]


def server_cpu(pid: int) -> float:
    """Processor seconds of the server's processes."""
    return sum(sum(one.cpu_times()[:2]) for one in _family(pid))


def database_cpu() -> float:
    """Processor seconds of the PostgreSQL that this program started, connections that have ended included."""
    tops = [one for one in psutil.Process().children() if one.name() == "postgres"]
    total = 0.0
    for top in tops:
        times = top.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
        for one in top.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                total += sum(one.cpu_times()[:2])
    return total


def show(result: dict[str, Any]) -> None:
    """The table."""
    table = Table(
        title=f"{result['hosts']} hosts of 8 devices at 1 Hz for {result['seconds']:g} s, PostgreSQL, "
        f"{result['workers']} server process(es), load on the same machine"
    )
    for column in ("quantity", "measured", "target"):
        table.add_column(column, justify="left" if column == "quantity" else "right")
    table.add_row("server, per host-second", f"{result['server_ms_per_host_s']:.2f} ms", f"≤ {TARGET_MS} ms")
    table.add_row("database, per host-second", f"{result['database_ms_per_host_s']:.2f} ms", "")
    table.add_row("hosts that one core of the server carries", str(result["hosts_of_one_core"]), "")
    for kind, one in result["requests"].items():
        table.add_row(f"{kind}: median / p99", f"{one['p50_s'] * 1000:.0f} / {one['p99_s'] * 1000:.0f} ms", "")
    table.add_row("ingest, p99", f"{result['p99_s']:.3f} s", f"< {TARGET_P99_S:g} s")
    if result["capture_s"]:
        table.add_row(
            "capture request to agent, median / largest", "{:.2f} / {:.2f} s".format(*result["capture_s"]), ""
        )
    table.add_row("server, resident", f"{result['server_resident_bytes'] / 1e6:.0f} MB", "")
    table.add_row("errors", str(sum(result["errors"].values())), "0")
    Console().print(table)
    for line, number in result["errors"].items():
        print(f"{number} × {line}")


if __name__ == "__main__":
    sys.exit(main())
