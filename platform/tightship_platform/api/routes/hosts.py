"""What agents tell about their hosts, and the hosts as they are known."""

from __future__ import annotations

import dataclasses

from tightship_platform import ingest
from tightship_platform.api.auth import reporter
from tightship_platform.api.reply import Answer, Config, Db, Refused
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.ingest import RefusedRows
from tightship_platform.queries import hosts
from tightship_platform.results.host import Host
from tightship_platform.vocabulary import Scope
from tightship_platform.wire import Batch, BatchReceived, Heartbeat, HeartbeatReceived

router = scoped_router("hosts")


@router.post("/hosts/heartbeat", dependencies=[needs(Scope.INGEST)], response_model=HeartbeatReceived)
def heartbeat(body: Heartbeat, database: Db) -> Answer:
    """An agent is there; which devices, sources and live runs it sees. Runs of another host are
    counted and left as they are."""
    with database.session() as session:
        refused = RefusedRows()
        ingest.apply_heartbeat(session, body, reporter=reporter(), refused=refused)
    return Answer(HeartbeatReceived(refused=refused.count, refusal=refused.reason))


ROW_LISTS = tuple(field.name for field in dataclasses.fields(Batch) if field.name != "host")


@router.post("/batches", dependencies=[needs(Scope.INGEST, row_lists=ROW_LISTS)], response_model=BatchReceived)
def batch(body: Batch, database: Db, settings: Config, refused: Refused) -> Answer:
    """A host's metrics since its last batch; the same batch again changes nothing. Rows with a value that cannot be,
    rows of another host's runs, and rows older than the server keeps samples (`TIGHTSHIP_KEEP_DAYS`), are counted and
    not stored; all others are."""
    with database.session() as session:
        received = ingest.apply_batch(session, body, keep_days=settings.keep_days, reporter=reporter(), refused=refused)
    return Answer(received)


@router.get("/hosts", dependencies=[needs(Scope.READ)], response_model=list[Host])
def list_hosts(database: Db) -> Answer:
    """All hosts with their devices and the state of their sources."""
    with database.session() as session:
        return Answer(hosts.list_hosts(session))
