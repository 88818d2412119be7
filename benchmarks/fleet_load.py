"""What a fleet costs the server: processor time per host and second, how long ingest takes, and whether anything fails.

Starts PostgreSQL and a server, and plays agents on the same machine: hosts of 8 devices at 1 Hz, each with its own
token and one run of 8 ranks. Every host delivers a batch and a heartbeat every 5 s and keeps a request for captures
open, as an agent does. Processor time is the system's count for the server's processes, for PostgreSQL's and for this
program's, from the moment at which every host has reported.

With `--away` the hosts were cut off for so long before they come all at once: each has its old batches to deliver, one
after another, beside the fresh ones; a worker rolls up. It ends when everything is stored and rolled up.

    python benchmarks/fleet_load.py [--hosts 200] [--seconds 60] [--workers 1] [--captures] [--away 3600] [--json-only]
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import uvloop
from parts.fleet_server import FleetServer, database_cpu_s, family_cpu_s, fleet_server, worker
from parts.results import keep, options
from parts.simulated_host import Figures, SimulatedHost
from rich.console import Console
from rich.table import Table
from sqlalchemy import func, select

from tightship_platform.database.engine import Database, open_database
from tightship_platform.database.models import DirtyHour, Sample

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
import services

TARGET_MS = 0.67
TARGET_P99_S = 1.0
TARGET_FRESH_S = 30.0
TARGET_CAUGHT_UP_S = 900.0
SPREAD_S = 5.0
"""Hosts begin evenly within this time, as long as their own period; many of them within longer."""
BEGIN_PER_S = 20
"""Hosts that begin in a second: what they say at first takes longer."""


def main() -> int:
    """Run it; 0 when the targets are met."""
    arguments = options(__doc__)
    arguments.add_argument("--hosts", type=int, default=200)
    arguments.add_argument("--seconds", type=float, default=60.0)
    arguments.add_argument("--workers", type=int, default=1)
    arguments.add_argument("--captures", action="store_true", help="ask for a capture of another host every second")
    arguments.add_argument("--away", type=int, default=0, help="seconds for which the hosts were cut off")
    given = arguments.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with (
            services.postgres_server() as url,
            tempfile.TemporaryDirectory(prefix="ts-bench-") as folder,
            fleet_server(Path(folder), url, hosts=given.hosts, workers=given.workers) as server,
        ):
            if given.away:
                with worker(server) as beside:
                    figures = uvloop.run(catch_up(server, beside, given.hosts, given.away))
            else:
                figures = uvloop.run(load(server, given.hosts, given.seconds, captures=given.captures))
    except services.Unavailable as why:
        print(f"not measured: {why}")
        return 0
    result = {"hosts": given.hosts, "workers": given.workers, "away_s": given.away, **figures}
    good = not result["errors"] and not result["faults"]
    if given.away:
        good &= result["caught_up_s"] <= TARGET_CAUGHT_UP_S and result["oldest_fresh_s"] <= TARGET_FRESH_S
    else:
        good &= result["server_ms_per_host_s"] <= TARGET_MS and result["p99_s"] < TARGET_P99_S
    result["within_target"] = good
    keep("fleet_catch_up" if given.away else "fleet_load", result, show, json_only=given.json_only)
    return 0 if good else 1


async def load(server: FleetServer, count: int, seconds: float, *, captures: bool) -> dict[str, Any]:
    """Play `count` hosts for this long; the figures."""
    figures = Figures()
    hosts = [SimulatedHost(number, server.port, server.tokens[number], figures) for number in range(count)]
    with living(hosts) as tasks:
        while any(host.beats < 2 or host.late_s > SPREAD_S for host in hosts):  # each is known, and in time
            await asyncio.sleep(1)
        await asyncio.sleep(SPREAD_S)
        figures.clear()
        spent = Spent(server)
        if captures:
            tasks.append(asyncio.create_task(_ask_for_captures(hosts)))
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            await asyncio.sleep(min(60.0, left_s))
            sys.stderr.write(f"{seconds - left_s:.0f} s: {spent.figures(count)} {figures.summary()}\n")
        costs = spent.figures(count)
    return {"seconds": seconds, **costs, **figures.summary(), "faults": await faults_of(tasks)}


async def catch_up(server: FleetServer, beside: psutil.Process, count: int, away_s: int) -> dict[str, Any]:
    """Have `count` hosts come back that were away; the figures."""
    figures = Figures()
    hosts = [
        SimulatedHost(number, server.port, server.tokens[number], figures, away_s=away_s) for number in range(count)
    ]
    spent, begun_s, rolled_up_s, stored_s = Spent(server, beside), time.monotonic(), None, None
    waiting: set[tuple[int, int]] = set()
    with living(hosts) as tasks, open_database(server.settings) as database:
        while rolled_up_s is None and time.monotonic() - begun_s < 2 * TARGET_CAUGHT_UP_S:
            await asyncio.sleep(1)
            if any(host.behind for host in hosts):
                continue
            # Fresh samples that come late mark hours, too: each that was marked when all was stored is waited for once.
            marked = _marked(database)
            waiting = marked if stored_s is None else waiting & marked
            stored_s = stored_s or time.monotonic() - begun_s
            rolled_up_s = None if waiting else time.monotonic() - begun_s
        costs = spent.figures(count)
        with database.session() as session:
            rows = session.scalar(select(func.count()).select_from(Sample))
    caught_up_s = rolled_up_s or float("inf")
    return {
        "device_samples": rows,
        "stored_s": None if stored_s is None else round(stored_s, 1),
        "caught_up_s": round(caught_up_s, 1),
        **costs,
        **figures.summary(),
        "faults": await faults_of(tasks),
    }


def _marked(database: Database) -> set[tuple[int, int]]:
    """Hours of devices that are to be rolled up again."""
    with database.session() as session:
        return {(row.device_id, row.hour_ns) for row in session.scalars(select(DirtyHour))}


@contextlib.contextmanager
def living(hosts: list[SimulatedHost]) -> Iterator[list[asyncio.Task[None]]]:
    """The hosts live as long as the block."""
    spread_s = SPREAD_S if hosts[0].behind else max(SPREAD_S, len(hosts) / BEGIN_PER_S)
    tasks = [asyncio.create_task(host.live(spread_s * host.number / len(hosts))) for host in hosts]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()


async def faults_of(tasks: list[asyncio.Task[None]]) -> list[str]:
    """What went wrong in this program."""
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    return [repr(one) for one in ended if isinstance(one, Exception)][:5]


class Spent:
    """Processor time from now on."""

    def __init__(self, server: FleetServer, beside: psutil.Process | None = None) -> None:
        self._server = server
        self._beside = beside
        self._begun_s = time.monotonic()
        self._before = self._seconds()

    def _seconds(self) -> dict[str, float]:
        spent = {"server": self._server.cpu_s(), "database": database_cpu_s(), "generator": time.process_time()}
        return spent if self._beside is None else spent | {"worker": family_cpu_s(self._beside)}

    def figures(self, hosts: int) -> dict[str, Any]:
        """As they are kept."""
        took_s = time.monotonic() - self._begun_s
        spent = {part: after - self._before[part] for part, after in self._seconds().items()}
        return {
            **{f"{part}_ms_per_host_s": round(1000 * used_s / hosts / took_s, 3) for part, used_s in spent.items()},
            **{f"{part}_cores": round(used_s / took_s, 3) for part, used_s in spent.items()},
            "hosts_of_one_core": int(hosts * took_s / spent["server"]) if spent["server"] else None,
            "server_resident_bytes": self._server.resident_bytes(),
        }


async def _ask_for_captures(hosts: list[SimulatedHost]) -> None:
    number = 0
    while True:
        await asyncio.sleep(1)
        await hosts[number % len(hosts)].ask_for_capture()
        number += 1


def show(result: dict[str, Any]) -> None:
    """The table."""
    how = f"for {result['seconds']:g} s" if "seconds" in result else f"back after {result['away_s']} s"
    table = Table(
        title=f"{result['hosts']} hosts of 8 devices at 1 Hz {how}, PostgreSQL, "
        f"{result['workers']} server process(es), load on the same machine"
    )
    for column in ("quantity", "measured", "target"):
        table.add_column(column, justify="left" if column == "quantity" else "right")
    is_load = "seconds" in result
    table.add_row(
        "server, per host-second", f"{result['server_ms_per_host_s']:.2f} ms", f"≤ {TARGET_MS} ms" if is_load else ""
    )
    table.add_row("database, per host-second", f"{result['database_ms_per_host_s']:.2f} ms", "")
    parts = [part for part in ("server", "database", "worker", "generator") if f"{part}_cores" in result]
    table.add_row("cores: " + ", ".join(parts), " / ".join(f"{result[f'{part}_cores']:.2f}" for part in parts), "")
    if is_load:
        table.add_row("hosts that one core of the server carries", str(result["hosts_of_one_core"]), "")
    else:
        table.add_row("samples of devices", f"{result['device_samples']:,}", "")
        table.add_row("everything stored after", f"{result['stored_s']} s", "")
        table.add_row("and rolled up after", f"{result['caught_up_s']} s", f"≤ {TARGET_CAUGHT_UP_S:g} s")
    for kind, one in result["requests"].items():
        table.add_row(f"{kind}: median / p99", f"{one['p50_s'] * 1000:.0f} / {one['p99_s'] * 1000:.0f} ms", "")
    table.add_row("ingest, p99", f"{result['p99_s']:.3f} s", f"< {TARGET_P99_S:g} s" if is_load else "")
    oldest = f"{result['oldest_fresh_s']:.1f} s"
    table.add_row("oldest newest sample of a host, once stored", oldest, f"≤ {TARGET_FRESH_S:g} s")
    if result["capture_s"]:
        table.add_row(
            "capture request to agent, median / largest", "{:.2f} / {:.2f} s".format(*result["capture_s"]), ""
        )
    table.add_row("server, resident", f"{result['server_resident_bytes'] / 1e6:.0f} MB", "")
    table.add_row("errors", str(sum(result["errors"].values())), "0")
    Console().print(table)
    for line, number in result["errors"].items():
        print(f"{number} × {line}")
    for fault in result["faults"]:
        print(fault)


if __name__ == "__main__":
    sys.exit(main())
