"""Connections that bring no request, or bring it too slowly or without an end: they are closed, and others are served.

uvicorn itself waits for ever for the rest of a head, keeps a head of any length, and answers 503 to everybody once too
many connections are open, also where nearly all of them never asked for anything.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = logging.getLogger(__name__)

HEAD_S = 20.0
"""How long a connection may take to a whole head, from its first moment or from the first byte of a further request."""
READ_S = 60.0
"""How long a client may leave an answer unread."""
HEAD_MAX_BYTES = 64 * 1024
"""Most that is read for a head, or between two pieces of a body (trailers, chunk extensions)."""
CONNECTIONS_MAX = 10_000
_FILES = 65_536
_SAY_EVERY_S = 60.0


def raise_file_limit() -> None:
    """Let this process open as many files and connections as the system permits, within reason."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def max_connections() -> int:
    """How many connections may be open at once; half of the open files stay for databases, artifacts and logs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else min(CONNECTIONS_MAX, soft // 2)


class BoundedConnection(HttpToolsProtocol):
    """One connection of a client. `limit_concurrency` of the server's configuration bounds their number."""

    _said_s: ClassVar[float] = -_SAY_EVERY_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_due: asyncio.TimerHandle | None = None
        self._read_due: asyncio.TimerHandle | None = None
        self._waits_since_s = time.monotonic()
        self._begun = False
        self._unparsed = 0

    @property
    def waits(self) -> bool:
        """Whether no request of it is being worked on."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Begin to wait for a head; where too many connections are open, the one that waits longest has to go."""
        super().connection_made(transport)
        self._await_head()
        most = self.config.limit_concurrency
        if most is not None and len(self.connections) >= most:
            self._make_room(most)

    def _make_room(self, most: int) -> None:
        others = (one for one in self.connections if isinstance(one, BoundedConnection) and one is not self)
        eldest = min((one for one in others if one.waits), key=lambda one: one._waits_since_s, default=None)
        if eldest is None:
            return  # all are at work: uvicorn answers 503
        self.connections.discard(eldest)
        eldest.transport.abort()
        now_s = time.monotonic()
        if now_s - BoundedConnection._said_s >= _SAY_EVERY_S:
            BoundedConnection._said_s = now_s
            log.warning("%d connections are open, the most there may be: closing those that ask for nothing", most)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what was due."""
        self._head_here()
        self._answer_read()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, unless it has come for too long without a result."""
        self._unparsed += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._unparsed > HEAD_MAX_BYTES:
            self._refuse(b"431 Request Header Fields Too Large")
        elif self.waits and self._head_due is None:
            self._await_head()  # uvicorn has given up its own timer for idle connections

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._begun = True
        self._await_head()

    def on_headers_complete(self) -> None:
        """A whole head."""
        self._head_here()
        self._begun, self._unparsed = False, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The end of a request."""
        self._unparsed = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """An answer is on its way; the connection waits for the next request."""
        self._waits_since_s = time.monotonic()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        self._read_due = self.loop.call_later(READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        """It does again."""
        self._answer_read()
        super().resume_writing()

    def shutdown(self) -> None:
        """The server ends: whoever waits for something to happen is answered, and sent away."""
        self.config.app.state.polls.close()  # type: ignore[union-attr]
        super().shutdown()

    def cut_body(self) -> None:
        """Where the client is still sending, hang up."""
        if not self.waits and self.cycle.more_body:
            self.transport.abort()

    def _await_head(self) -> None:
        self._head_here()
        self._head_due = self.loop.call_later(HEAD_S, self._head_late)

    def _head_late(self) -> None:
        self._head_due = None
        if self.transport.is_closing():
            return
        if self._begun:
            self._refuse(b"408 Request Timeout")
        else:
            self.transport.close()

    def _head_here(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    def _answer_read(self) -> None:
        if self._read_due is not None:
            self._read_due.cancel()
            self._read_due = None

    def _refuse(self, status: bytes) -> None:
        if not self.waits:
            self.transport.abort()  # an answer to the request before is under way
            return
        self.transport.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()
