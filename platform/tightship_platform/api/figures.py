"""What the server says of itself and of the installation at `/metrics`."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextvars import copy_context

from sqlalchemy import QueuePool, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from tightship_platform.database.engine import CONNECTIONS, Database
from tightship_platform.database.models import Capture, Host, SecondPass, Trace
from tightship_platform.database.teams import see_team
from tightship_platform.processes.metrics import Figure
from tightship_platform.settings import Settings
from tightship_platform.tasks.app import queue_lengths
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import CaptureState

log = logging.getLogger(__name__)

KEPT_S = 10.0
"""What is counted in the database is counted again after this time, however many ask."""
LIVE_NS = 30 * NS_PER_S


class Figures:
    """Of one server."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._counted: list[Figure] = []
        self._until_s = 0.0

    def read(self) -> list[Figure]:
        """The figures now, those of the installation at most KEPT_S old. Waits for the database and the broker."""
        if time.monotonic() >= self._until_s:
            # In another context: they are kept for the next caller, whose team may be another.
            self._counted = [*copy_context().run(list, self._of_database()), *self._of_broker()]
            self._until_s = time.monotonic() + KEPT_S
        return [*self._counted, *self._of_pool()]

    def _of_database(self) -> Iterator[Figure]:
        try:
            see_team(None)
            with self._database.session() as session:
                found = list(_counted(session))
        except (DBAPIError, PoolTimeout):
            yield Figure(name="tightship_database_up", value=0)
            return
        yield Figure(name="tightship_database_up", value=1)
        yield from found

    def _of_broker(self) -> Iterator[Figure]:
        for queue, length in queue_lengths(self._settings).items():
            yield Figure(name="tightship_queue_length", value=length, labels=(queue,))

    def _of_pool(self) -> Iterator[Figure]:
        pool = self._database.engine.pool
        if isinstance(pool, QueuePool):
            yield Figure(name="tightship_database_connections", value=pool.checkedout(), labels=("in use",))
            yield Figure(name="tightship_database_connections", value=pool.checkedin(), labels=("idle",))
            yield Figure(name="tightship_database_connections_max", value=CONNECTIONS)


def _counted(session: Session) -> Iterator[Figure]:
    counted = session.execute(select(Capture.state, func.count()).group_by(Capture.state))
    by_state = {row[0]: row[1] for row in counted}
    for state in CaptureState:
        yield Figure(name="tightship_captures", value=by_state.get(state.value, 0), labels=(state.value,))
    hosts = session.scalar(select(func.count()).select_from(Host).where(Host.fleet_id.is_(None))) or 0
    heard = (
        select(func.count()).select_from(Host).where(Host.last_seen_ns >= now_ns() - LIVE_NS, Host.fleet_id.is_(None))
    )
    live = session.scalar(heard) or 0
    yield Figure(name="tightship_hosts", value=live, labels=("live",))
    yield Figure(name="tightship_hosts", value=hosts - live, labels=("silent",))
    stored = session.scalar(select(func.sum(Trace.bytes)).where(Trace.removed_ns.is_(None))) or 0
    second = session.scalar(
        select(func.sum(SecondPass.bytes))
        .join(Trace, Trace.id == SecondPass.trace_id)
        .where(Trace.removed_ns.is_(None))
    )
    yield Figure(name="tightship_artifact_bytes", value=float(stored) + float(second or 0))
