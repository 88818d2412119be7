"""Deliveries that are stored together, one transaction for many."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tightship_platform.api.turns import later
from tightship_platform.database.engine import Database
from tightship_platform.database.round_trips import pipelined
from tightship_platform.ingest import newcomers, quick
from tightship_platform.ingest.known import KnownHosts
from tightship_platform.ingest.newcomers import Arrival
from tightship_platform.ingest.quick import Delivery
from tightship_platform.units import now_ns

log = logging.getLogger(__name__)

LINGER_S = 0.1
"""How long a delivery waits for others that are stored with it."""
MOST_TOGETHER = 100
"""Deliveries of one transaction."""
GROUPS_AT_ONCE = 4
"""Transactions of hosts that are known at once: one that is held up does not hold up the others."""
NEWCOMERS_AT_ONCE = 2
"""The same, of what says something new."""
MOST_WAITING = 1000
"""Deliveries that say something new and wait; one more is asked to come later."""
MOST_OF_ONE = 500
"""Of these, those of one caller."""
T = TypeVar("T")


class Groups(Generic[T]):
    """Items that are stored together, and by themselves when something is wrong with one of them.

    :param store: stores items; returns the ids of those that are committed.
    :param at_once: groups at once, each with a connection that nobody else uses: those that go the long way must not
        keep others from the short one.
    """

    def __init__(self, store: Callable[[list[T]], set[int]], at_once: int, name: str) -> None:
        self._together = store
        self._at_once = at_once
        self._pool = ThreadPoolExecutor(at_once, name)
        self._waiting: list[tuple[T, asyncio.Future[bool | None]]] = []
        self._under_way = 0
        self._is_overdue = False
        """Some have waited long enough, and go as soon as a group has ended."""

    def close(self) -> None:
        """Nothing more is stored."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def store(self, item: T) -> bool | None:
        """Whether it is committed; otherwise it has changed nothing, and has to go the long way. None: something was
        wrong with it or another one, such as a device that is gone.

        :raises DBAPIError: there is trouble with the database.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bool | None] = loop.create_future()
        self._waiting.append((item, done))
        if len(self._waiting) == 1:
            # Of no request: what a group logs is not about the one that began it.
            loop.call_later(LINGER_S, self._begin, loop, context=Context())
        return await done

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting and self._under_way < self._at_once:
            group = self._take()
            self._under_way += 1
            work = loop.run_in_executor(self._pool, self._store, [item for item, _ in group])
            work.add_done_callback(lambda ended, group=group: self._end(loop, group, ended))  # type: ignore[misc]
        self._is_overdue = bool(self._waiting)

    def _take(self) -> list[tuple[T, asyncio.Future[bool | None]]]:
        group, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
        return group

    def _end(
        self,
        loop: asyncio.AbstractEventLoop,
        group: list[tuple[T, asyncio.Future[bool | None]]],
        ended: asyncio.Future[set[int]],
    ) -> None:
        self._under_way -= 1
        error = asyncio.CancelledError() if ended.cancelled() else ended.exception()
        for item, done in group:
            if done.done():  # its request was given up
                continue
            if error is None:
                done.set_result(id(item) in ended.result())
            elif isinstance(error, PoolTimeout) or (isinstance(error, DBAPIError) and error.connection_invalidated):
                done.set_exception(error)
            else:
                done.set_result(None)  # alone, each learns what is wrong with it
        if self._is_overdue:
            self._begin(loop)

    def _store(self, items: list[T]) -> set[int]:
        try:
            return self._together(items)
        except Exception as error:
            if len(items) > 1:
                why = " ".join(str(error).split())[:200]
                log.warning("%d deliveries are stored one by one: %s", len(items), why)
            raise


def known_groups(database: Database) -> Groups[Delivery]:
    """Those of hosts that are known.

    :param database: with GROUPS_AT_ONCE connections for this alone.
    """

    def store(deliveries: list[Delivery]) -> set[int]:
        with pipelined(database) as session:
            stored = quick.store(session, deliveries)
        for one in stored:
            one.remember()
        return {id(one) for one in stored}

    return Groups(store, GROUPS_AT_ONCE, "ingest")


@dataclass(kw_only=True, eq=False)
class Newcomer:
    """What says something new, and who sent it."""

    arrival: Arrival
    caller: Hashable
    is_own: bool
    """The caller has the host's own token."""


class Newcomers(Groups[Newcomer]):
    """What says something new. Callers share the groups: however much one sends, the others go on.

    :param database: with NEWCOMERS_AT_ONCE connections for this alone.
    :param known_hosts: get what is known from then on.
    """

    def __init__(self, database: Database, known_hosts: KnownHosts) -> None:
        super().__init__(self._meet, NEWCOMERS_AT_ONCE, "newcomers")
        self._database = database
        self._known_hosts = known_hosts

    async def store(self, item: Newcomer) -> bool | None:
        """As `Groups.store`.

        :raises AskedToWait: too many wait.
        """
        if len(self._waiting) >= MOST_OF_ONE:
            mine = sum(other.caller == item.caller for other, _ in self._waiting)
            if mine >= MOST_OF_ONE or len(self._waiting) >= MOST_WAITING:
                raise later()
        return await super().store(item)

    def _take(self) -> list[tuple[Newcomer, asyncio.Future[bool | None]]]:
        self._waiting = in_turn(self._waiting, lambda waiting: waiting[0].caller)
        return super()._take()

    def _meet(self, items: list[Newcomer]) -> set[int]:
        with self._database.session() as session:
            stored = {id(one) for one in newcomers.store(session, [item.arrival for item in items])}
        done = [item for item in items if id(item.arrival) in stored]
        now = now_ns()
        for item in done:
            item.arrival.delivery.remember()
            self._known_hosts.keep(item.caller, item.arrival.delivery.known, now, is_own=item.is_own)
        return {id(item) for item in done}


def in_turn(items: Sequence[T], whose: Callable[[T], Hashable]) -> list[T]:
    """The first of each, then the second of each, and so on, in the order in which they came."""
    count: Counter[Hashable] = Counter()
    turns = []
    for place, item in enumerate(items):
        turns.append((count[whose(item)], place))
        count[whose(item)] += 1
    return [items[place] for _, place in sorted(turns)]
