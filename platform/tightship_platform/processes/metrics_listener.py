"""Where a part without a web server answers `GET /metrics`: only when TIGHTSHIP_METRICS_ADDRESS says so."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tightship_platform.errors import Invalid
from tightship_platform.processes.metrics import CONTENT_TYPE, METRICS
from tightship_platform.settings import Settings

SILENT_S = 10.0
"""A client that says nothing for so long is left."""


class MetricsListener:
    """Listens from its creation, and answers from `start` on."""

    def __init__(self, settings: Settings, part: str) -> None:
        """Take the address.

        :raises Invalid: it cannot be listened on.
        """
        host, _, port = settings.metrics_address.rpartition(":")

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        class Handler(BaseHTTPRequestHandler):
            timeout = SILENT_S

            def do_GET(self) -> None:
                if self.path.partition("?")[0] != "/metrics":
                    self.send_error(404)
                    return
                body = METRICS.render(part).encode()
                self.send_response(200)
                self.send_header("content-type", CONTENT_TYPE)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Scrapes are no news."""

        try:
            self._server = Server((host.strip("[]"), int(port)), Handler)
        except OSError as error:
            expected = f"an address of this machine that nothing else uses ({error.strerror or error})"
            raise Invalid("TIGHTSHIP_METRICS_ADDRESS", settings.metrics_address, expected) from error

    def start(self) -> None:
        """Answer, in a thread."""
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.server_close()
