"""Runs the server: one listener, one process or several, an end that open dashboards cannot delay."""

from __future__ import annotations

import errno
import logging
import os
import socket
import ssl
import threading
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from tightship_platform.api.app import create_app
from tightship_platform.api.auth import open_to
from tightship_platform.api.connections import BoundedConnection, max_connections, raise_file_limit
from tightship_platform.api.workers import run_workers
from tightship_platform.database.engine import open_database, upgrade
from tightship_platform.errors import Conflict, Invalid
from tightship_platform.logs import configure_logging
from tightship_platform.settings import Settings

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 15
"""How long a connection may be idle between two requests."""
END_S = 3
"""How long requests in progress may take to end after SIGTERM or Ctrl-C."""


def serve(settings: Settings, *, host: str, port: int, workers: int = 1) -> None:
    """Serve until a signal says stop.

    :param workers: processes that serve beside each other.
    :raises Conflict: the port is in use, or tokens are needed and there are none.
    :raises Invalid: the host is no address of this machine, or its certificate or key is of no use.
    """
    configure_logging(settings.log_format)
    certificate, key = _certificate(settings)
    raise_file_limit()
    with _listen(host, port) as listener:
        upgrade(settings)
        with open_database(settings) as database:
            access = "open" if open_to(host, settings, database) else "tokens required"
        bound = listener.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        several = f", {workers} processes" if workers > 1 else ""

        def work() -> None:
            app = create_app(settings, host=host)
            _Server(configuration(app, certificate, key)).run(sockets=[listener])
            _leave()

        log.info("Serving %s://%s:%d (%s%s)", "https" if certificate else "http", shown, bound, access, several)
        if workers > 1:
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


def _certificate(settings: Settings) -> tuple[Path | None, Path | None]:
    """The files of the server's certificate and key, both checked.

    :raises Invalid: certificate or key cannot be read, or they do not belong together.
    """
    certificate, key = settings.tls_cert_file, settings.tls_key_file
    if certificate is None:
        if key is not None:
            raise Invalid("TIGHTSHIP_TLS_KEY_FILE", str(key), "TIGHTSHIP_TLS_CERT_FILE beside it")
        return None, None
    for name, path in (("TIGHTSHIP_TLS_CERT_FILE", certificate), ("TIGHTSHIP_TLS_KEY_FILE", key or certificate)):
        try:
            path.open("rb").close()
        except OSError as error:
            raise Invalid(name, str(path), f"a file that the server may read ({error.strerror})") from error
    try:
        # Here rather than by uvicorn, which would ask the terminal for the password of a key that has one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=str)
    except ssl.SSLError as error:
        expected = (
            f"a PEM certificate whose key, without a password, is in {key or certificate} ({error.reason or error})"
        )
        raise Invalid("TIGHTSHIP_TLS_CERT_FILE", str(certificate), expected) from error
    return certificate, key


class _Server(uvicorn.Server):
    """Ends with exit code 0 on SIGTERM and SIGINT, where uvicorn raises the signal again."""

    def handle_exit(self, sig: int, frame: object) -> None:
        self.force_exit = self.should_exit  # asked a second time: wait for nobody
        self.should_exit = True


def _leave() -> None:
    """End without waiting for a request that still sits in a worker thread, such as one that waits for a lock.

    Its transaction is rolled back by the database; waiting would only turn the clean end into a kill.
    """
    if any(thread is not threading.main_thread() and not thread.daemon for thread in threading.enumerate()):
        logging.shutdown()
        os._exit(0)


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket, taken before anything else is done: the port is either ours or the command ends."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise Invalid("--host", host, "an address or name of this machine") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise Conflict(
                f"Port {port} on {host} is in use; stop what listens there or choose another with --port"
            ) from error
        raise Invalid("--host and --port", f"{host}:{port}", f"an address to listen on ({error.strerror})") from error
    return listener
