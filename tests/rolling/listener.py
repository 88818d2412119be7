"""One address before several servers, as a balancer of TCP connections: the next server where one does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import threading


class Listener:
    """Runs in its own thread."""

    def __init__(self) -> None:
        self.ports: list[int] = []
        """Of the servers behind it; may change meanwhile."""
        self._turn = 0
        self._loop = asyncio.new_event_loop()
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more connections."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ports = list(self.ports)
        self._turn += 1
        for number in range(len(ports)):
            with contextlib.suppress(OSError):
                there, back = await asyncio.open_connection("127.0.0.1", ports[(self._turn + number) % len(ports)])
                await asyncio.gather(_copy(reader, back), _copy(there, writer))
                return
        writer.close()


async def _copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            to.write(data)
            await to.drain()
    to.close()
