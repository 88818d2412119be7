"""What agents tell about their hosts, and the hosts as they are known."""

from __future__ import annotations

import dataclasses

from fastapi import Request

from tightship_platform import ingest
from tightship_platform.api.auth import reporter, require
from tightship_platform.api.enrolment import enrol_host
from tightship_platform.api.filters import Wanted
from tightship_platform.api.reply import Answer, Config, Db, Known, Refused, count_request, count_stored
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.ingest import RefusedRows
from tightship_platform.ingest.known import KnownHost, KnownHosts
from tightship_platform.processes.metrics import METRICS
from tightship_platform.queries import hosts
from tightship_platform.results.host import Host
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import Scope
from tightship_platform.wire import Batch, BatchReceived, Enrolled, EnrolRequest, Heartbeat, HeartbeatReceived

router = scoped_router("hosts")


@router.post("/hosts/heartbeat", dependencies=[needs(Scope.INGEST)], response_model=HeartbeatReceived)
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
    dependencies=[needs(Scope.INGEST, row_lists=ROW_LISTS)],
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
        known.keep(caller, host, now, is_own=caller.host == host.name)


def _count(body: Batch, received: BatchReceived, left_out: int) -> None:
    """:param left_out: refused rows that are not in `body` any more."""
    rows = sum(len(getattr(body, name)) for name in ROW_LISTS)
    METRICS.count("tightship_ingest_rows_total", "too_old", by=received.too_old)
    METRICS.count("tightship_ingest_rows_total", "refused", by=received.refused)
    times = (sample.time_ns for part in (body.samples, body.host_samples, body.run_samples) for sample in part)
    count_stored(rows + left_out - received.refused - received.too_old, max(times, default=None))


@router.post("/hosts/enrol", dependencies=[needs(Scope.ENROL)], response_model=Enrolled)
def enrol(body: EnrolRequest, database: Db) -> Answer:
    """Exchange a one-time word for the host's own token."""
    caller = require(Scope.ENROL)
    with database.session() as session:
        token = enrol_host(session, caller.name, body.host)
    return Answer(Enrolled(name=caller.name, token=token))


@router.get("/hosts", dependencies=[needs(Scope.READ)], response_model=list[Host])
def list_hosts(database: Db, filters: Wanted, after: str | None = None, limit: int = hosts.HOSTS_AT_ONCE) -> Answer:
    """Hosts by name, with their devices and the state of their sources; of those after `after`, the last name of the
    page before. `since` and `until` are about when they were last heard of, and `state` is `alive` or `silent`."""
    with database.session() as session:
        return Answer(hosts.list_hosts(session, filters, after=after, limit=limit))
