"""Shared by all routes: the database of the request, and the form of an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated

from fastapi import Depends, Request
from starlette.responses import JSONResponse

from tightship_platform.api.auth import current_caller
from tightship_platform.database.engine import Database
from tightship_platform.ingest import RefusedRows
from tightship_platform.ingest.known import KnownHosts
from tightship_platform.processes.metrics import METRICS
from tightship_platform.results.codec import fields_of
from tightship_platform.settings import Settings
from tightship_platform.units import NS_PER_S, now_ns


async def _database(request: Request) -> Database:
    database: Database = request.app.state.database
    return database


async def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


async def _refused_rows(request: Request) -> RefusedRows:
    refused: RefusedRows = request.state.refused_rows
    return refused


async def _known_hosts(request: Request) -> KnownHosts:
    known: KnownHosts = request.app.state.known_hosts
    return known


# Not on the thread pool, which may be full: that is what `async` says here.
Db = Annotated[Database, Depends(_database)]
"""The server's database. Routes open a session in the open, so that the commit precedes the answer."""
Config = Annotated[Settings, Depends(_settings)]
"""The server's settings."""
Refused = Annotated[RefusedRows, Depends(_refused_rows)]
"""Rows that were left out of the body, where the route declares `row_lists`."""


Known = Annotated[KnownHosts, Depends(_known_hosts)]
"""What this process knows of hosts."""


def count_request(request: Request, host: str) -> None:
    """Count a delivery of a host's agent, once.

    :raises TooManyRequests: there were too many.
    """
    if not getattr(request.state, "is_counted", False):
        request.state.is_counted = True
        # By caller, too: nobody uses up what another's host may send.
        caller = current_caller()
        name = f"{caller.name if caller else ''}\0{host}"
        request.app.state.host_rates.take(name, f"Host {host[:100]!r}")


def count_stored(rows: int, sampled_ns: int | None) -> None:
    """Count rows of a batch that are stored.

    :param sampled_ns: time of its newest sample; None: it has none.
    """
    METRICS.count("tightship_ingest_rows_total", "stored", by=rows)
    if sampled_ns is not None:
        METRICS.observe("tightship_ingest_lag_seconds", max(0, now_ns() - sampled_ns) / NS_PER_S)


def count_stored_values(standard: str, counts: Mapping[str, int]) -> None:
    """Count what became of the values of a request.

    :param standard: by which they came: `remote-write` or `otlp`.
    """
    for outcome, count in counts.items():
        if not count:
            continue
        METRICS.count("tightship_received_values_total", standard, outcome, by=count)


class Answer(JSONResponse):
    """A record, or a list of them, as JSON.

    A route names the type of its answer as `response_model`, which documents it. The answer itself is written here
    once: FastAPI does not look at it again.
    """

    def render(self, content: object) -> bytes:
        """Its bytes."""
        text = json.dumps(content, default=fields_of, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8")
