"""The short way of what agents send all the time, before the routes: many deliveries, one transaction.

Stands behind the gate, which has recognised the caller. What is not plain is handed on, its body as it came, to the
route, which looks at it as if it had never been here, once it is its turn (`turns`). See [Note: the short way] in
`ingest.quick`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from functools import lru_cache
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as Connection

from tightship_platform.api.auth import current_caller
from tightship_platform.api.bodies import first, read_body
from tightship_platform.api.errors import outside_of_routes
from tightship_platform.api.leases import answer_lease
from tightship_platform.api.polls import Polls
from tightship_platform.api.reply import Answer, count_request, count_stored
from tightship_platform.api.scopes import JSON_MAX_BYTES, LATER
from tightship_platform.api.turns import Turns
from tightship_platform.client import API
from tightship_platform.database.engine import Database
from tightship_platform.database.round_trips import pipelined
from tightship_platform.database.teams import see_team
from tightship_platform.errors import TightshipError
from tightship_platform.ingest import plain, quick
from tightship_platform.ingest.known import KnownHost, KnownHosts
from tightship_platform.ingest.quick import Delivery
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import Scope
from tightship_platform.wire import BatchReceived, HeartbeatReceived

log = logging.getLogger(__name__)

LINGER_S = 0.1
"""How long a delivery waits for others that are stored with it."""
MOST_TOGETHER = 100
"""Deliveries of one transaction."""
GROUPS_AT_ONCE = 4
"""Transactions at once: one that is held up does not hold up the others."""

_KINDS: dict[str, tuple[Callable[[bytes], Any], Callable[[Any, KnownHost, int], Delivery | None]]] = {
    f"{API}/hosts/heartbeat": (plain.read_heartbeat, quick.plain_heartbeat),
    f"{API}/batches": (plain.read_batch, quick.plain_batch),
}
_LEASE = f"{API}/captures/lease"
_BY_STANDARDS = {f"{API}/prometheus/write", f"{API}/otlp/v1/metrics"}
_IN_TURN = {*_KINDS, *_BY_STANDARDS, f"{API}/runs"}
"""Paths whose long way has turns."""
_PATHS = {*_IN_TURN, _LEASE}


class Deliveries:
    """ASGI layer that answers plain heartbeats, batches and requests for captures. Other deliveries wait for their
    turn."""

    def __init__(
        self, app: ASGIApp, groups: Groups, known_hosts: KnownHosts, turns: Turns, polls: Polls, database: Database
    ) -> None:
        self.app = app
        self._groups = groups
        self._known_hosts = known_hosts
        self._turns = turns
        self._polls = polls
        self._database = database

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        caller = current_caller() if scope["type"] == "http" and scope["path"] in _PATHS else None
        if caller is None or not caller.may(Scope.INGEST) or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        see_team(None)  # as for the routes: what is sent may be about a run of another team
        request = Request(scope, receive)
        try:
            what = "The body" if scope["path"] in _BY_STANDARDS else "The JSON body"
            body = await read_body(request, most=JSON_MAX_BYTES, what=what)
            answer = await self._answer(request, body) if len(body) <= LATER else None
            if answer is None and scope["path"] in _IN_TURN:
                await self._turns.begin(caller.name, len(body))
        except ClientDisconnect:
            return
        except (TightshipError, PoolTimeout, DBAPIError) as error:
            answer = outside_of_routes(error)
        if answer is not None:
            await answer(scope, receive, send)
            return
        try:
            await self.app(scope, first(body, receive), send)
        finally:
            if scope["path"] in _IN_TURN:
                self._turns.end(caller.name)

    async def _answer(self, request: Request, body: bytes) -> Response | None:
        if request.scope["path"] == _LEASE:
            wanted = plain.read_lease(body)
            return await answer_lease(request, wanted, self._polls, self._database) if wanted is not None else None
        if request.scope["path"] not in _KINDS:
            return None
        read, prepare = _KINDS[request.scope["path"]]
        said = read(body)
        if said is None:
            return None
        count_request(request, said.host)
        caller, now = current_caller(), now_ns()
        known = self._known_hosts.get(caller, said.host, now)
        delivery = prepare(said, known, now) if known is not None else None
        if delivery is None:
            return None
        is_stored = await self._groups.store(delivery)
        if is_stored is None:
            self._known_hosts.forget(caller, said.host)
        if not is_stored:
            return None
        if isinstance(delivery.answer, HeartbeatReceived):
            return Response(_HEARTBEAT_RECEIVED, media_type=Answer.media_type)
        count_stored(delivery.answer.rows + len(said.devices), delivery.sampled_ns)
        return Response(_batch_received(delivery.answer.rows), media_type=Answer.media_type)


_HEARTBEAT_RECEIVED = Answer(HeartbeatReceived()).body


@lru_cache(maxsize=1024)
def _batch_received(rows: int) -> bytes:
    return bytes(Answer(BatchReceived(rows=rows, unknown_runs=[])).body)


class Groups:
    """Deliveries that are stored together, and by themselves when something is wrong with one of them.

    :param database: with at least GROUPS_AT_ONCE connections that nobody else uses: those that go the long way, many at
        first, must not keep others from the short one.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._pool = ThreadPoolExecutor(GROUPS_AT_ONCE, "ingest")
        self._waiting: list[tuple[Delivery, asyncio.Future[bool | None]]] = []
        self._under_way = 0
        self._is_overdue = False
        """Some have waited long enough, and go as soon as a group has ended."""

    def close(self) -> None:
        """Nothing more is stored."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._database.close()

    async def store(self, delivery: Delivery) -> bool | None:
        """Whether it is committed; otherwise it has changed nothing, and has to go the long way. None: something was
        wrong with it or another one, such as a device that is gone.

        :raises DBAPIError: there is trouble with the database.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bool | None] = loop.create_future()
        self._waiting.append((delivery, done))
        if len(self._waiting) == 1:
            # Of no request: what a group logs is not about the one that began it.
            loop.call_later(LINGER_S, self._begin, loop, context=Context())
        return await done

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting and self._under_way < GROUPS_AT_ONCE:
            group, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
            self._under_way += 1
            work = loop.run_in_executor(self._pool, self._store, [delivery for delivery, _ in group])
            work.add_done_callback(lambda ended, group=group: self._end(loop, group, ended))  # type: ignore[misc]
        self._is_overdue = bool(self._waiting)

    def _end(
        self,
        loop: asyncio.AbstractEventLoop,
        group: list[tuple[Delivery, asyncio.Future[bool | None]]],
        ended: asyncio.Future[set[int]],
    ) -> None:
        self._under_way -= 1
        error = asyncio.CancelledError() if ended.cancelled() else ended.exception()
        for delivery, done in group:
            if done.done():  # its request was given up
                continue
            if error is None:
                done.set_result(id(delivery) in ended.result())
            elif isinstance(error, PoolTimeout) or (isinstance(error, DBAPIError) and error.connection_invalidated):
                done.set_exception(error)
            else:
                done.set_result(None)  # alone, each learns what is wrong with it
        if self._is_overdue:
            self._begin(loop)

    def _store(self, deliveries: list[Delivery]) -> set[int]:
        """Ids of those that are committed."""
        try:
            with pipelined(self._database) as session:
                stored = quick.store(session, deliveries)
        except Exception as error:
            if len(deliveries) > 1:
                log.warning(
                    "%d deliveries are stored one by one: %s", len(deliveries), " ".join(str(error).split())[:200]
                )
            raise
        for one in stored:
            one.remember()
        return {id(one) for one in stored}
