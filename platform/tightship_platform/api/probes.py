"""Looks at what the server needs, apart from its requests: neither their threads nor their connections are used."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy.exc import DBAPIError

from tightship_platform.database import schema
from tightship_platform.database.engine import open_probe
from tightship_platform.errors import TightshipError
from tightship_platform.settings import Settings
from tightship_platform.tasks.app import broker_answers

PATIENCE_S = 5.0
"""What has not answered by then counts as unreachable."""
Seen = TypeVar("Seen")


@dataclass(frozen=True, kw_only=True)
class DatabaseState:
    """What was seen of the database."""

    state: str
    """`ok`, `another schema` or `unreachable`."""
    schema: str | None = None
    difference: str | None = None
    """In what its schema is not this release's."""


class Probe(Generic[Seen]):
    """A look that may hang: one at a time, in its own thread. Whoever comes meanwhile gets the same answer."""

    def __init__(self, look: Callable[[], Seen]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._under_way: Future[Seen] | None = None

    async def seen(self) -> Seen | None:
        """What is seen now; None: nothing within PATIENCE_S."""
        with self._lock:
            if self._under_way is None or self._under_way.done():
                self._under_way = Future()
                threading.Thread(target=self._work, args=(self._under_way,), name="probe", daemon=True).start()
            future = asyncio.wrap_future(self._under_way)
        done, _ = await asyncio.wait([future], timeout=PATIENCE_S)
        return future.result() if done else None

    def _work(self, found: Future[Seen]) -> None:
        try:
            found.set_result(self._look())
        except BaseException as error:
            found.set_exception(error)


class Probes:
    """The probes of one server."""

    def __init__(self, settings: Settings) -> None:
        self._engine = open_probe(settings)
        self._database = Probe(self._look_at_database)
        self._broker = Probe(lambda: broker_answers(settings))

    async def database(self) -> DatabaseState:
        """How the database is."""
        return await self._database.seen() or DatabaseState(state="unreachable")

    async def broker(self) -> bool:
        """Whether the broker answers."""
        return bool(await self._broker.seen())

    def close(self) -> None:
        """Give the connection back."""
        self._engine.dispose()

    def _look_at_database(self) -> DatabaseState:
        try:
            version = schema.read_version(self._engine)
        except (TightshipError, DBAPIError):
            return DatabaseState(state="unreachable")
        state = "ok" if version.fits else "another schema"
        return DatabaseState(state=state, schema=version.revision, difference=version.difference)
