"""What agents tell about their hosts, and the hosts as they are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

from fastapi import Request
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from tightship_platform import ingest
from tightship_platform.api.auth import reporter, require
from tightship_platform.api.enrolment import enrol_host
from tightship_platform.api.reply import Answer, Config, Db, Known, Refused, count_request
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.ingest import RefusedRows, quick
from tightship_platform.ingest.known import KnownHost, KnownHosts
from tightship_platform.processes.metrics import METRICS
from tightship_platform.queries import hosts
from tightship_platform.results.host import Host
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import Scope
from tightship_platform.wire import Batch, BatchReceived, Enrolled, EnrolRequest, Heartbeat, HeartbeatReceived

router = scoped_router("hosts")
Stored = TypeVar("Stored")


async def _quick_heartbeat(request: Request, body: bytes) -> Response | None:
    beat = quick.read_heartbeat(body)
    if beat is None:
        return None
    count_request(request, beat.host)
    taken = await _quickly(
        request, beat.host, lambda session, known, now: quick.quick_heartbeat(session, beat, known, now) or None
    )
    return Answer(HeartbeatReceived()) if taken else None


async def _quick_batch(request: Request, body: bytes) -> Response | None:
    batch = quick.read_batch(body)
    if batch is None:
        return None
    count_request(request, batch.host)
    received = await _quickly(
        request, batch.host, lambda session, known, now: quick.quick_batch(session, batch, known, now)
    )
    if received is None:
        return None
    _count(batch, received)
    return Answer(received)


async def _quickly(
    request: Request, host: str, store: Callable[[Session, KnownHost, int], Stored | None]
) -> Stored | None:
    """What `store` answers for a host that is known; None: it is not, or what is known of it is so no more."""
    caller, now = require(Scope.INGEST), now_ns()
    known_hosts: KnownHosts = request.app.state.known_hosts
    known = known_hosts.get(caller, host, now)
    if known is None:
        return None

    def work() -> Stored | None:
        try:
            with request.app.state.database.session() as session:
                stored = store(session, known, now)
                if stored is None:
                    session.rollback()
                return stored
        except IntegrityError:  # the host, a device or a run was removed meanwhile
            known_hosts.forget(caller, host)
            return None
        except BaseException:
            known_hosts.forget(caller, host)
            raise

    return await run_in_threadpool(work)


@router.post(
    "/hosts/heartbeat", dependencies=[needs(Scope.INGEST, quick=_quick_heartbeat)], response_model=HeartbeatReceived
)
def heartbeat(body: Heartbeat, database: Db, known: Known, request: Request) -> Answer:
    """An agent is there; which devices, sources and live runs it sees. Runs of another host are
    counted and left as they are."""
    count_request(request, body.host)
    stated: list[KnownHost] = []
    with database.session() as session:
        refused = RefusedRows()
        ingest.apply_heartbeat(session, body, reporter=reporter(), refused=refused, tell=stated.append)
    _keep(known, stated)
    return Answer(HeartbeatReceived(refused=refused.count, refusal=refused.reason))


ROW_LISTS = tuple(field.name for field in dataclasses.fields(Batch) if field.name != "host")


@router.post(
    "/batches",
    dependencies=[needs(Scope.INGEST, row_lists=ROW_LISTS, quick=_quick_batch)],
    response_model=BatchReceived,
)
def batch(body: Batch, database: Db, settings: Config, refused: Refused, known: Known, request: Request) -> Answer:
    """A host's metrics since its last batch; the same batch again changes nothing. Rows with a value that cannot be,
    rows of another host's runs, and rows older than the server keeps samples (`TIGHTSHIP_KEEP_DAYS`), are counted and
    not stored; all others are."""
    count_request(request, body.host)
    stated: list[KnownHost] = []
    left_out = refused.count
    with database.session() as session:
        received = ingest.apply_batch(
            session,
            body,
            keep_days=settings.keep_days,
            reporter=reporter(),
            refused=refused,
            tell=stated.append,
        )
    _keep(known, stated)
    _count(body, received, left_out)
    return Answer(received)


def _keep(known: KnownHosts, stated: list[KnownHost]) -> None:
    """Remember what is true now that it is committed."""
    caller, now = require(Scope.INGEST), now_ns()
    for host in stated:
        known.keep(caller, host, now)


def _count(body: Batch | quick.QuickBatch, received: BatchReceived, left_out: int = 0) -> None:
    """:param left_out: refused rows that are not in `body` any more."""
    rows = sum(len(getattr(body, name, ())) for name in ROW_LISTS)
    METRICS.count("tightship_ingest_rows_total", "stored", by=rows + left_out - received.refused - received.too_old)
    METRICS.count("tightship_ingest_rows_total", "too_old", by=received.too_old)
    METRICS.count("tightship_ingest_rows_total", "refused", by=received.refused)
    times = [sample.time_ns for samples in (body.samples, body.host_samples, body.run_samples) for sample in samples]
    if times:
        METRICS.observe("tightship_ingest_lag_seconds", max(0, now_ns() - max(times)) / NS_PER_S)


@router.post("/hosts/enrol", dependencies=[needs(Scope.ENROL)], response_model=Enrolled)
def enrol(body: EnrolRequest, database: Db) -> Answer:
    """Exchange a one-time word for the host's own token."""
    caller = require(Scope.ENROL)
    with database.session() as session:
        token = enrol_host(session, caller.name, body.host)
    return Answer(Enrolled(name=caller.name, token=token))


@router.get("/hosts", dependencies=[needs(Scope.READ)], response_model=list[Host])
def list_hosts(
    database: Db, host: str | None = None, after: str | None = None, limit: int = hosts.HOSTS_AT_ONCE
) -> Answer:
    """Hosts by name, with their devices and the state of their sources: the one called `host`, or those after
    `after`, the last name of the page before."""
    with database.session() as session:
        return Answer(hosts.list_hosts(session, host=host, after=after, limit=limit))
