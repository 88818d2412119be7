"""What a fleet costs the server: processor time per host and second, how long ingest takes, and whether anything fails.

Starts PostgreSQL and a server, and plays agents on the same machine: hosts of 8 devices at 1 Hz, each with its own
token and one run of 8 ranks. Every host delivers a batch and a heartbeat every 5 s and keeps a request for captures
open, as an agent does. All begin within 5 s, new to the server, and are settled when it takes from each what is due.
From then on counts the processor time that the system shows for the server's processes, for PostgreSQL's and for this
program. With `--until-it-breaks` further hosts come after that, until ingest takes too long.

With `--away` the hosts were cut off for so long before they come all at once: each has its old batches to deliver, one
after another, beside the fresh ones; a worker rolls up. It ends when everything is stored and rolled up.

    python benchmarks/fleet_load.py [--hosts 200] [--seconds 60] [--workers 1] [--captures] [--until-it-breaks]
    python benchmarks/fleet_load.py --away 3600 [--hosts 150] [--workers 1]
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
TARGET_SETTLED_S = 60.0
SPREAD_S = 5.0
"""Hosts begin evenly within this time, as long as their own period."""
SETTLE_S = 300.0
"""Longest time for which hosts may take to settle."""
MORE = 0.05
"""Share of the hosts that come in each step until it breaks."""
STEP_S = 20.0
"""How long each step is measured, after as long a time in which its hosts settle."""


def main() -> int:
    """Run it; 0 when the targets are met."""
    arguments = options(__doc__)
    arguments.add_argument("--hosts", type=int, default=200)
    arguments.add_argument("--seconds", type=float, default=60.0)
    arguments.add_argument("--workers", type=int, default=1)
    arguments.add_argument("--captures", action="store_true", help="ask for a capture of another host every second")
    arguments.add_argument("--until-it-breaks", action="store_true", help="then add hosts until ingest takes too long")
    arguments.add_argument("--away", type=int, default=0, help="seconds for which the hosts were cut off")
    given = arguments.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    hosts = 2 * given.hosts if given.until_it_breaks else given.hosts
    try:
        with (
            services.postgres_server() as url,
            tempfile.TemporaryDirectory(prefix="ts-bench-") as folder,
            fleet_server(Path(folder), url, hosts=hosts, workers=given.workers) as server,
        ):
            if given.away:
                with worker(server) as beside:
                    figures = uvloop.run(catch_up(server, beside, given.hosts, given.away))
            else:
                figures = uvloop.run(
                    load(server, given.hosts, given.seconds, captures=given.captures, breaks=given.until_it_breaks)
                )
    except services.Unavailable as why:
        print(f"not measured: {why}")
        return 0
    result = {"hosts": given.hosts, "workers": given.workers, "away_s": given.away, **figures}
    good = not result["errors"] and not result["faults"]
    if given.away:
        good &= result["caught_up_s"] <= TARGET_CAUGHT_UP_S and result["oldest_fresh_s"] <= TARGET_FRESH_S
    else:
        good &= result["server_ms_per_host_s"] <= TARGET_MS and result["p99_s"] < TARGET_P99_S
        settled_s = result["start"]["settled_s"]
        good &= settled_s is not None and settled_s <= TARGET_SETTLED_S and not result["start"]["errors"]
    result["within_target"] = good
    keep("fleet_catch_up" if given.away else "fleet_load", result, show, json_only=given.json_only)
    return 0 if good else 1


async def load(
    server: FleetServer, count: int, seconds: float, *, captures: bool = False, breaks: bool = False
) -> dict[str, Any]:
    """Play `count` hosts for this long; the figures."""
    figures = Figures()
    hosts = simulated(server, figures, range(count))
    spent, begun_s = Spent(server), time.monotonic()
    with living(hosts) as tasks:
        while not (settled := all(host.is_settled for host in hosts)) and time.monotonic() - begun_s < SETTLE_S:
            await asyncio.sleep(0.5)
        start = {
            "settled_s": round(time.monotonic() - begun_s, 1) if settled else None,
            **spent.of_each(count),
            **figures.summary(),
        }
        sys.stderr.write(f"settled: {start}\n")
        await asyncio.sleep(SPREAD_S)
        figures.clear()
        spent = Spent(server)
        asking = asyncio.create_task(_ask_for_captures(hosts)) if captures else None
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            await asyncio.sleep(min(60.0, left_s))
            sys.stderr.write(f"{seconds - left_s:.0f} s: {spent.figures(count)} {figures.summary()}\n")
        found = {"seconds": seconds, "start": start, **spent.figures(count), **figures.summary()}
        if asking is not None:
            asking.cancel()
        if breaks:
            found["break"] = await break_point(server, hosts, figures, tasks)
    return found | {"faults": await faults_of(tasks)}


async def break_point(
    server: FleetServer, hosts: list[SimulatedHost], figures: Figures, tasks: list[asyncio.Task[None]]
) -> dict[str, Any]:
    """Add hosts until ingest takes too long, or until there are twice as many; the figures of the last step."""
    most, step = 2 * len(hosts), max(1, int(MORE * len(hosts)))
    while True:
        more = simulated(server, figures, range(len(hosts), min(most, len(hosts) + step)))
        hosts += more
        tasks += begin(more)
        await asyncio.sleep(SPREAD_S + STEP_S)
        figures.clear()
        spent = Spent(server)
        await asyncio.sleep(STEP_S)
        late = sum(not host.is_settled for host in hosts)
        found = {"hosts": len(hosts), "late": late, **spent.figures(len(hosts)), **figures.summary()}
        found["broke"] = bool(late) or found["p99_s"] >= TARGET_P99_S
        sys.stderr.write(f"{found}\n")
        if found["broke"] or len(hosts) >= most:
            return found


def simulated(server: FleetServer, figures: Figures, numbers: range, *, away_s: int = 0) -> list[SimulatedHost]:
    """Hosts with these numbers."""
    return [SimulatedHost(number, server.port, server.tokens[number], figures, away_s=away_s) for number in numbers]


async def catch_up(server: FleetServer, beside: psutil.Process, count: int, away_s: int) -> dict[str, Any]:
    """Have `count` hosts come back that were away; the figures."""
    figures = Figures()
    hosts = simulated(server, figures, range(count), away_s=away_s)
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
    """The hosts live as long as the block, and so do those whose tasks are added."""
    tasks = begin(hosts)
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()


def begin(hosts: list[SimulatedHost]) -> list[asyncio.Task[None]]:
    """Their lives."""
    return [asyncio.create_task(host.live(SPREAD_S * place / len(hosts))) for place, host in enumerate(hosts)]


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

    def of_each(self, hosts: int) -> dict[str, Any]:
        """Milliseconds for each host in all."""
        return {
            f"{part}_ms_per_host": round(1000 * (after - self._before[part]) / hosts, 1)
            for part, after in self._seconds().items()
        }

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
    if is_load:
        start = result["start"]
        settled = f"not within {SETTLE_S:g} s" if start["settled_s"] is None else f"{start['settled_s']} s"
        table.add_row("all began at once, and were settled after", settled, f"≤ {TARGET_SETTLED_S:g} s")
        table.add_row("server, for each host until then", f"{start['server_ms_per_host']} ms", "")
        table.add_row("deliveries asked to wait until then", str(start["asked_to_wait"]), "")
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
    if is_load and "break" in result:
        end = result["break"]
        what = "it breaks at" if end["broke"] else "it does not break at"
        cores = " / ".join(f"{end[f'{part}_cores']:.2f}" for part in parts)
        table.add_row(f"{what} (hosts; cores: {', '.join(parts)})", f"{end['hosts']}; {cores}", "")
    table.add_row("errors", str(sum(result["errors"].values())), "0")
    Console().print(table)
    for line, number in result["errors"].items():
        print(f"{number} × {line}")
    for fault in result["faults"]:
        print(fault)


if __name__ == "__main__":
    sys.exit(main())
