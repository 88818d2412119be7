"""What a host that is new costs: processor time of the server and of PostgreSQL for its run, first batch and heartbeat.

Hosts of 8 devices with one run of 8 ranks say what they say first, fifty at once, to the application of a server in
this process. One half of them goes the way of many at once, the other the long way, one by one.

    python benchmarks/first_contact.py [--hosts 100]
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

from fastapi import FastAPI
from parts.fleet_server import database_cpu_s
from parts.prepared_bodies import PERIOD_S, PreparedBodies
from parts.results import keep, options
from rich.console import Console
from rich.table import Table
from sqlalchemy import event
from sqlalchemy.engine import Engine

from tightship_platform.api.app import create_app
from tightship_platform.api.auth import create_token
from tightship_platform.client import API
from tightship_platform.database.engine import open_database, upgrade
from tightship_platform.ingest import newcomers
from tightship_platform.settings import load_settings
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import Scope

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
import services

TARGET_RATIO = 4.0
"""How much less a first batch and heartbeat take together than alone."""
AT_ONCE = 50
"""Hosts at once: so few that none is asked to wait on a busy machine."""
STEPS = 5
SAID = ("run", "batch", "heartbeat")


def main() -> int:
    """Run it; 0 when the target is met."""
    arguments = options(__doc__)
    arguments.add_argument("--hosts", type=int, default=100, help="of each half")
    given = arguments.parse_args()
    try:
        with services.postgres_server() as url, tempfile.TemporaryDirectory(prefix="ts-bench-") as folder:
            settings = load_settings({"TIGHTSHIP_HOME": folder, "TIGHTSHIP_DATABASE_URL": url})
            upgrade(settings)
            with open_database(settings) as database, database.session() as session:
                tokens = [create_token(session, f"node{n:05d}", [Scope.INGEST]) for n in range(2 * given.hosts + 8)]
            found = asyncio.run(_measure(create_app(settings), tokens, given.hosts))
    except services.Unavailable as why:
        print(f"not measured: {why}")
        return 0
    spent = {how: sum(sum(found[how][what][:2]) for what in ("batch", "heartbeat")) for how in found}
    result = {"hosts": given.hosts, **found, "ratio": round(spent["alone"] / spent["together"], 1)}
    result["within_target"] = result["ratio"] >= TARGET_RATIO
    keep("first_contact", result, show, json_only=given.json_only)
    return 0 if result["within_target"] else 1


async def _measure(app: FastAPI, tokens: list[str], hosts: int) -> dict[str, dict[str, list[float]]]:
    """Way → what is said → ms of the server, ms of the database, statements; of each host."""
    await _first_contact(app, tokens[-8:], len(tokens) - 8)  # imports and caches
    gc.collect()
    gc.freeze()
    found = {"together": await _first_contact(app, tokens[:hosts], 0)}
    with mock.patch.object(newcomers, "arrival_of", lambda *_: None):
        found["alone"] = await _first_contact(app, tokens[hosts : 2 * hosts], hosts)
    return found


async def _first_contact(app: FastAPI, tokens: list[str], first: int) -> dict[str, list[float]]:
    begun_ns = now_ns() - PERIOD_S * NS_PER_S
    bodies = [PreparedBodies(first + number, begun_ns) for number in range(len(tokens))]
    records = {
        "run": ("/runs", [one.record() for one in bodies]),
        "batch": ("/batches", [one.batch(begun_ns, STEPS, repeats=True) for one in bodies]),
        "heartbeat": ("/hosts/heartbeat", [one.heartbeat(now_ns(), 0, STEPS) for one in bodies]),
    }
    found = {}
    for what, (path, of_hosts) in records.items():
        sent: list[str] = []

        def note(*given: Any, sent: list[str] = sent) -> None:
            sent.append(given[2])

        event.listen(Engine, "before_cursor_execute", note)
        server_s, database_s = time.process_time(), database_cpu_s()
        sending = [_post(app, path, token, body) for token, body in zip(tokens, of_hosts, strict=True)]
        for begun in range(0, len(sending), AT_ONCE):
            await asyncio.gather(*sending[begun : begun + AT_ONCE])
        taken = 1000 * (time.process_time() - server_s), 1000 * (database_cpu_s() - database_s), len(sent)
        event.remove(Engine, "before_cursor_execute", note)
        found[what] = [round(value / len(tokens), 2) for value in taken]
    return found


async def _post(app: FastAPI, path: str, token: str, body: bytes) -> None:
    """As it comes from uvicorn."""
    headers = {"host": "127.0.0.1", "authorization": f"Bearer {token}", "content-type": "application/json"}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": API + path,
        "raw_path": (API + path).encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    status = 0

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)

    await app(scope, receive, send)
    if status != 200:
        raise SystemExit(f"{path}: {status}")


def show(result: dict[str, Any]) -> None:
    """The table."""
    table = Table(
        title=f"First contact of {result['hosts']} hosts, {AT_ONCE} at once; of each, in ms of processor time"
    )
    for column in ("what", "way", "server", "database", "statements"):
        table.add_column(column, justify="left" if column in ("what", "way") else "right")
    for what in SAID:
        for how in ("together", "alone"):
            table.add_row(what, how, *(f"{value:.2f}" for value in result[how][what]))
    Console().print(table)
    print(f"A first batch and heartbeat take {result['ratio']} times less together (target {TARGET_RATIO:g}).")


if __name__ == "__main__":
    sys.exit(main())
