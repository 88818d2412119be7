"""What agents tell about their hosts, and the hosts as they are known."""

from __future__ import annotations

from starlette.responses import JSONResponse

from tightship_platform import ingest
from tightship_platform.api.reply import Config, Db, reply
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.queries import hosts
from tightship_platform.vocabulary import Scope
from tightship_platform.wire import Batch, Heartbeat

router = scoped_router("hosts")


@router.post("/hosts/heartbeat", dependencies=[needs(Scope.INGEST)], response_model=None)
def heartbeat(body: Heartbeat, database: Db) -> JSONResponse:
    """An agent is there; which devices, sources and live runs it sees. Answers `{}`."""
    with database.session() as session:
        ingest.apply_heartbeat(session, body)
    return reply({})


@router.post("/batches", dependencies=[needs(Scope.INGEST)], response_model=None)
def batch(body: Batch, database: Db, settings: Config) -> JSONResponse:
    """A host's metrics since its last batch; the same batch again changes nothing.

    Answers `{"rows": n, "too_old": m, "unknown_runs": […]}`: of the n rows, m are older than the server keeps samples
    (`TIGHTSHIP_KEEP_DAYS`) and were not stored.
    """
    with database.session() as session:
        rows = ingest.apply_batch(session, body, keep_days=settings.keep_days)
    return reply(rows)


@router.get("/hosts", dependencies=[needs(Scope.READ)], response_model=None)
def list_hosts(database: Db) -> JSONResponse:
    """All hosts with their devices and the state of their sources."""
    with database.session() as session:
        return reply(hosts.list_hosts(session))
