"""A server on its own port, and what agents and launchers send to it."""

from __future__ import annotations

import gzip
import hashlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from waiting import PATIENCE_S, wait_for

from tightship_platform.api.app import create_app
from tightship_platform.api.gate import COOKIE
from tightship_platform.api.server import configuration
from tightship_platform.client import API, ApiClient
from tightship_platform.database.engine import Database
from tightship_platform.settings import Settings
from tightship_platform.token_file import local_token_path, read_token
from tightship_platform.units import NS_PER_S, now_ns

HOST = "node-1"
RUN = "00aa11bb22cc33dd"
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts nobody. For clients of plain HTTP, who would each read all certificates of the system."""


@dataclass(frozen=True)
class Served:
    """A running server."""

    url: str
    app: FastAPI
    settings: Settings

    @property
    def database(self) -> Database:
        """Its database."""
        database: Database = self.app.state.database
        return database

    @property
    def local_token(self) -> str:
        """Of the user who runs it; empty where it takes none."""
        token: str = self.app.state.access.local_token
        return token

    @property
    def cookie(self) -> dict[str, str]:
        """What the browser of that user sends."""
        return {f"{COOKIE}_{self.url.rpartition(':')[2]}": self.local_token} if self.local_token else {}

    def http(self, token: str | None = None, **headers: str) -> httpx.Client:
        """A plain HTTP client of its API.

        :param token: None: that of the user who runs the server, where it takes one.
        """
        token = self.local_token if token is None else token
        if token:
            headers["authorization"] = f"Bearer {token}"
        return httpx.Client(
            base_url=self.url + API, headers=headers, trust_env=False, timeout=PATIENCE_S, verify=NO_TLS
        )

    def pages(self, **headers: str) -> httpx.Client:
        """The browser of the user who runs it."""
        return httpx.Client(
            base_url=self.url,
            headers={"accept": "text/html"} | headers,
            cookies=self.cookie,
            trust_env=False,
            timeout=PATIENCE_S,
            verify=NO_TLS,
        )

    def api(self, token: str = "") -> ApiClient:
        """The client that agents and the command line use."""
        return ApiClient(replace(self.settings, server=self.url, token=token))


SERVED: dict[str, Served] = {}
"""Servers of this process, by address."""


@contextmanager
def serving(
    settings: Settings, host: str = "127.0.0.1", port: int = 0, *, address: str = "127.0.0.1"
) -> Iterator[Served]:
    """A real server in a thread, listening on `address` as if it were to listen on `host`."""
    listener = socket.create_server((address, port))
    app = create_app(settings, host=host)
    server = uvicorn.Server(configuration(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_for(lambda: server.started or not thread.is_alive())
        assert server.started, "the server ended at its start"
        served = Served(f"http://127.0.0.1:{listener.getsockname()[1]}", app, settings)
        SERVED[served.url] = served
        yield served
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def authorization(home: Path) -> str:
    """The line of a request's head by which the user of a server's home proves who they are."""
    return f"Authorization: Bearer {read_token(local_token_path(home))}\r\n"


# ---- records ---------------------------------------------------------------------------------------------------------


def run_record(run: str = RUN, **changes: Any) -> dict[str, Any]:
    """A run that started a minute ago."""
    start = now_ns() - 60 * NS_PER_S
    return {"run": run, "workflow": "vision", "team": "red", "start_ns": start, "host": HOST} | changes


def heartbeat(run: str = RUN, *, pids: dict[int, int] | None = None) -> dict[str, Any]:
    """An agent that sees the run alive with these ranks (rank → pid)."""
    ranks = [{"rank": rank, "pid": pid, "guard": True} for rank, pid in (pids or {0: 100}).items()]
    return {
        "host": HOST,
        "time_ns": now_ns(),
        "agent_version": "test",
        "devices": [{"uuid": "cpu", "kind": "cpu", "name": "A processor"}],
        "runs": [{"run": run, "ranks": ranks, "devices": ["cpu"], "since_ns": now_ns() - 50 * NS_PER_S}],
    }


def trace_file(size: int = 1000) -> bytes:
    """A gzip file of about the shape of a trace."""
    return gzip.compress(json.dumps({"traceEvents": [{"name": f"op {i}"} for i in range(size)]}).encode())


def sha256(data: bytes) -> str:
    """As the uploader announces it."""
    return hashlib.sha256(data).hexdigest()


class Capture:
    """Walks one capture through the API as agent and launcher do."""

    def __init__(
        self,
        http: httpx.Client,
        *,
        pids: dict[int, int] | None = None,
        run: str = RUN,
        workflow: str = "vision",
        info: dict[str, int] | None = None,
        **params: Any,
    ) -> None:
        self.http = http
        self.run = run
        self.pids = pids or {0: 100}
        ok(http.post("/runs", json=run_record(run, workflow=workflow)))
        ok(http.post("/hosts/heartbeat", json=heartbeat(run, pids=self.pids) | {"info": info or {}}))
        self.key: str = ok(http.post("/captures", json={"target": run, "params": params}))["capture"]

    def lease(self) -> list[dict[str, Any]]:
        """What the agent of the host is given."""
        leases: list[dict[str, Any]] = ok(self.http.post("/captures/lease", json={"host": HOST, "runs": [self.run]}))[
            "leases"
        ]
        return leases

    def report(self, state: str, **more: Any) -> dict[str, Any]:
        """The agent's report."""
        answer = ok(self.http.post(f"/captures/{self.key}/report", json={"host": HOST, "state": state} | more))
        assert isinstance(answer, dict)
        return answer

    def write(self) -> None:
        """Up to the files lying on the host's disk."""
        assert [lease["capture"] for lease in self.lease()] == [self.key]
        self.report("armed", expected=[{"rank": rank, "pid": pid} for rank, pid in self.pids.items()])
        self.report("recording")
        self.report("written")

    def put(self, data: bytes, rank: int = 0, *, announced: str | None = None, **params: Any) -> httpx.Response:
        """Upload the file of a rank."""
        return self.http.put(
            f"/captures/{self.key}/traces/{rank}",
            params={"pid": self.pids.get(rank, 1), "host": HOST} | params,
            headers={"x-sha256": announced or sha256(data)},
            content=data,
        )

    def now(self) -> dict[str, Any]:
        """As the API tells it."""
        answer = ok(self.http.get(f"/captures/{self.key}"))
        assert isinstance(answer, dict)
        return answer


def ok(response: httpx.Response) -> Any:
    """The decoded answer of a request that went well."""
    assert response.status_code == 200, f"{response.status_code} {response.text}"
    return response.json()


def refused(response: httpx.Response, status: int, *words: str) -> str:
    """The one line of a request that was refused."""
    assert response.status_code == status, f"{response.status_code} {response.text}"
    body = response.json()
    assert list(body) == ["error"]
    message: str = body["error"]
    assert message.isprintable()
    assert message
    for word in words:
        assert word in message, message
    return message
