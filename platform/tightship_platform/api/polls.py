"""Agents that wait for captures and for requests of stacks: while they do, none has a thread or a database connection.

[Note: one look for all]
A process looks for what could be leased LOOK_S apart, once for all who wait, and only while
somebody does. So it makes no difference which server process took the request for a capture, or which the agent is
connected to. Who is woken leases as if it had just come: what was seen is only a reason to try.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection
from collections.abc import Set as AbstractSet
from contextvars import Context

from fastapi import Request
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from tightship_platform.captures import leasable_runs
from tightship_platform.captures.stacks import wanted_runs
from tightship_platform.database.engine import Database

log = logging.getLogger(__name__)

LOOK_S = 0.2


class Polls:
    """Those of one process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._watch: asyncio.Task[None] | None = None
        self.is_closing = False
        """The server ends: nobody waits any more."""

    async def wait(self, request: Request, runs: AbstractSet[str], seconds: float) -> bool:
        """Wait until one of these runs may have a capture to lease, the time is over, or the server ends.

        :returns: whether to try. False also when the caller has gone: it must get no lease.
        """
        woken = asyncio.Event()
        if self._watch is None or self._watch.done():
            # Of no request: it looks for all, not for the team of the one that began it.
            self._watch = asyncio.create_task(self._look_again(), context=Context())
        for run in runs:
            self._waiting[run].add(woken)
        # The body has been read: what comes next is the caller's leaving.
        left, waked = asyncio.ensure_future(request.receive()), asyncio.ensure_future(woken.wait())
        try:
            await asyncio.wait((left, waked), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return waked.done() and not left.done() and not self.is_closing
        finally:
            left.cancel()
            waked.cancel()
            for run in runs:
                self._waiting[run].discard(woken)
                if not self._waiting[run]:
                    del self._waiting[run]

    def close(self) -> None:
        """Let all go. Only from the event loop's thread."""
        self.is_closing = True
        self._wake(list(self._waiting))

    def _wake(self, runs: Collection[str]) -> None:
        for run in runs:
            for woken in self._waiting.get(run, ()):
                woken.set()

    async def _look_again(self) -> None:
        while self._waiting:
            await asyncio.sleep(LOOK_S)
            try:
                self._wake(await run_in_threadpool(self._look))
            except SQLAlchemyError as error:
                log.warning("Waiting captures cannot be looked for: %s", " ".join(str(error).split())[:200])
                await asyncio.sleep(5 * LOOK_S)

    def _look(self) -> set[str]:
        with self._database.session() as session:
            return leasable_runs(session) | wanted_runs(session)
