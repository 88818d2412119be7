"""HTTP/1.1 with as little work as possible, so that a load leaves the processor to the server."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class Answer:
    """What the server said."""

    status: int
    body: bytes
    wait_s: float
    """How long it asks to wait; 0: it does not."""


class PostConnection(asyncio.Protocol):
    """Posts one body after another; opened at the first, and again after it ended."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        head = f"host: 127.0.0.1:{port}\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n"
        self._head = head.encode()
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._received = b""

    async def post(self, path: str, body: bytes) -> Answer:
        """The answer.

        :raises OSError: the connection is refused or ends.
        """
        loop = asyncio.get_running_loop()
        if self._transport is None or self._transport.is_closing():
            self._transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", self._port)
        self._answer, self._received = loop.create_future(), b""
        head = b"POST /api/v1%s HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n"
        self._transport.writelines((head % (path.encode(), self._head, len(body)), body))
        try:
            return await self._answer
        except BaseException:
            if self._transport is not None:  # else it ended by itself
                self._transport.close()
            raise

    def data_received(self, data: bytes) -> None:
        """Part of an answer."""
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end or self._answer is None or self._answer.done():
            return
        lines = head.lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        if len(body) >= length:
            wait_s = next((float(line[12:]) for line in lines if line.startswith(b"retry-after:")), 0.0)
            self._answer.set_result(Answer(status=int(lines[0].split()[1]), body=body, wait_s=wait_s))

    def connection_lost(self, exc: Exception | None) -> None:
        """The server has closed it."""
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc if isinstance(exc, OSError) else ConnectionError("the connection ended"))
