"""Runs the server: one listener, one process or several, an end that open dashboards cannot delay."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import uvicorn
from fastapi import FastAPI

from tightship_platform.api.app import create_app, load_parts
from tightship_platform.api.auth import local_token
from tightship_platform.api.connections import BoundedConnection, max_connections, raise_file_limit
from tightship_platform.api.drain import Drain
from tightship_platform.api.workers import run_workers
from tightship_platform.captures.artifact_store import StoreTrouble, open_artifacts
from tightship_platform.database.engine import open_database, upgrade
from tightship_platform.errors import Conflict
from tightship_platform.logs import configure_logging
from tightship_platform.processes.login_codes import login_link
from tightship_platform.processes.start import starting
from tightship_platform.settings import Settings

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 15
"""How long a connection may be idle between two requests."""
BACKLOG = 1024
END_S = 3
"""How long requests in progress may take to end after SIGTERM or Ctrl-C, beyond the time that uploads get (drain)."""


def serve(
    settings: Settings,
    listener: socket.socket,
    certificate: Path | None,
    key: Path | None,
    *,
    host: str,
    workers: int = 1,
) -> None:
    """Serve on a socket that is bound and does not listen yet, under TLS where there is a certificate, until a signal
    says stop.

    :param host: what the socket was bound to by.
    :param workers: processes that serve beside each other.
    :raises Conflict: tokens are needed and there are none, or somebody else listens on the port meanwhile.
    :raises Invalid: the artifact store cannot be written.
    """
    configure_logging(settings.log_format)
    raise_file_limit()
    with starting():
        # Before the schema is changed, after which servers of older releases may not be ready any more.
        load_parts()
    upgrade(settings)
    try:
        open_artifacts(settings).require_writable()
    except StoreTrouble as trouble:
        log.warning("%s; agents keep their traces until it can", trouble)
    with open_database(settings) as database:
        is_local = bool(local_token(host, settings, database))
    port = listener.getsockname()[1]
    url = f"{'https' if certificate else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
    access = "one local user" if is_local else "tokens required"
    several = f", {workers} processes" if workers > 1 else ""

    def announce() -> None:
        log.info("Serving %s (%s%s)", url, access, several)
        if is_local and sys.stderr.isatty():  # for somebody who reads it now, not for a log
            log.info("To open it, once, within five minutes: %s", login_link(url, settings.home))

    announce_once = _once(announce)

    def listen() -> None:
        try:
            listener.listen(BACKLOG)
        except OSError as error:  # another bound it too, and was first to listen
            raise Conflict(
                f"Port {port} on {host} is in use; stop what listens there or choose another with --port"
            ) from error

    def work() -> None:
        with starting():
            app = create_app(settings, host=host)
        if workers == 1:
            listen()
        _Server(configuration(app, certificate, key), app.state.drain, announce_once).run(sockets=[listener])
        _leave()

    if workers > 1:
        listen()
        run_workers(workers, work)
    else:
        work()


def configuration(app: FastAPI, certificate: Path | None = None, key: Path | None = None) -> uvicorn.Config:
    """How uvicorn serves our application: under TLS where there is a certificate."""
    return uvicorn.Config(
        app,
        http=BoundedConnection,
        limit_concurrency=max_connections(),
        log_config=None,
        access_log=False,
        # Callers are distinguished by their socket; a header that names another address is nothing to believe.
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=END_S,
        # Longer than the 5 s in which an agent comes again, so that its connection lasts.
        timeout_keep_alive=KEEP_ALIVE_S,
        ws="none",
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )


def _once(action: Callable[[], None]) -> Callable[[], None]:
    """Has the first that calls do it, of this process and all that it forks."""
    ticket, office = os.pipe()
    os.set_blocking(ticket, False)
    os.write(office, b"1")

    def call() -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(ticket, 1)
            action()

    return call


class _Server(uvicorn.Server):
    """Says when it serves, and ends in peace: with exit code 0, where uvicorn raises the signal again."""

    def __init__(self, config: uvicorn.Config, drain: Drain, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._drain, self._announce = drain, announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        if self.started:
            self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what is under way, what takes longest first."""
        if not await self._drain.wait(lambda: self.force_exit, self._stop_listening):
            for connection in list(self.server_state.connections):
                connection.cut_body()  # type: ignore[union-attr]  # all are BoundedConnections
        await super().shutdown(sockets)

    def _stop_listening(self) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()  # after the answer that is under way

    def handle_exit(self, sig: int, frame: object) -> None:
        self.force_exit = self.should_exit  # asked a second time: wait for nobody
        self.should_exit = True


def _leave() -> NoReturn:
    """End at once, and without waiting for a request that still sits in a worker thread, such as one that waits for a
    lock.

    Its transaction is rolled back by the database; waiting would only turn the clean end into a kill. And Python would
    take every module apart first, for a quarter of the processor time of a start.
    """
    logging.shutdown()
    os._exit(0)
