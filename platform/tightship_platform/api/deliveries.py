"""The short way of what agents send all the time, before the routes: many deliveries, one transaction.

Stands behind the gate, which has recognised the caller. What is not plain is handed on, its body as it came, to the
route, which looks at it as if it had never been here, once it is its turn (`turns`). See [Note: the short way] in
`ingest.quick`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as Connection

from tightship_platform.api.auth import Caller, current_caller, reporter
from tightship_platform.api.bodies import first, read_body
from tightship_platform.api.errors import outside_of_routes
from tightship_platform.api.groups import Groups, Newcomer, Newcomers
from tightship_platform.api.leases import answer_lease
from tightship_platform.api.polls import Polls
from tightship_platform.api.reply import Answer, count_request, count_stored
from tightship_platform.api.scopes import JSON_MAX_BYTES, LATER
from tightship_platform.api.turns import Turns
from tightship_platform.client import API
from tightship_platform.database.engine import Database
from tightship_platform.database.teams import see_team
from tightship_platform.errors import TightshipError
from tightship_platform.ingest import newcomers, plain, quick
from tightship_platform.ingest.known import KnownHost, KnownHosts
from tightship_platform.ingest.quick import Delivery
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import Scope
from tightship_platform.wire import BatchReceived, HeartbeatReceived

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
        self,
        app: ASGIApp,
        groups: Groups[Delivery],
        newcomers: Newcomers,
        known_hosts: KnownHosts,
        turns: Turns,
        polls: Polls,
        database: Database,
    ) -> None:
        self.app = app
        self._groups = groups
        self._newcomers = newcomers
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
            delivery = await self._meet(caller, said, prepare, now)
        else:
            is_stored = await self._groups.store(delivery)
            if is_stored is None:
                self._known_hosts.forget(caller, said.host)
            delivery = delivery if is_stored else None
        if delivery is None:
            return None
        if isinstance(delivery.answer, HeartbeatReceived):
            return Response(_HEARTBEAT_RECEIVED, media_type=Answer.media_type)
        count_stored(delivery.answer.rows + len(said.devices), delivery.sampled_ns)
        return Response(_batch_received(delivery.answer.rows), media_type=Answer.media_type)

    async def _meet(self, caller: Caller | None, said: Any, prepare: newcomers.Prepare, now: int) -> Delivery | None:
        """What says something new, as it was stored; None: it has to go the long way."""
        arrival = newcomers.arrival_of(said, reporter(), prepare, now)
        if arrival is None:
            return None
        is_own = caller is not None and caller.host == said.host
        is_stored = await self._newcomers.store(Newcomer(arrival=arrival, caller=caller, is_own=is_own))
        return arrival.delivery if is_stored else None


_HEARTBEAT_RECEIVED = Answer(HeartbeatReceived()).body


@lru_cache(maxsize=1024)
def _batch_received(rows: int) -> bytes:
    return bytes(Answer(BatchReceived(rows=rows, unknown_runs=[])).body)
