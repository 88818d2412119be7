"""Runs: announced by launchers, read by everybody."""

from __future__ import annotations

from starlette.responses import JSONResponse

from tightship_platform import ingest
from tightship_platform.api.reply import Db, reply
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.queries import runs, timeline
from tightship_platform.vocabulary import Scope
from tightship_platform.wire import RunRecord

router = scoped_router("runs")


@router.post("/runs", dependencies=[needs(Scope.INGEST)], response_model=None)
def record(body: RunRecord, database: Db) -> JSONResponse:
    """A run starts or has ended, as its launcher tells it. Answers `{"run": key}`."""
    with database.session() as session:
        key = ingest.apply_run(session, body)
    return reply({"run": key})


@router.get("/runs", dependencies=[needs(Scope.READ)], response_model=None)
def list_runs(database: Db, workflow: str | None = None, state: str | None = None, limit: int = 200) -> JSONResponse:
    """Runs, newest first: run, workflow, team, owner, state, exit_code, start_ns, end_ns, devices, steps, device_ns,
    account (bucket → ns; null before the first account)."""
    with database.session() as session:
        return reply(runs.list_runs(session, workflow=workflow, state=state, limit=limit))


@router.get("/runs/{key}", dependencies=[needs(Scope.READ)], response_model=None)
def get_run(key: str, database: Db) -> JSONResponse:
    """One run: the keys of the list, and host, user, command, labels, reason, simulated, ranks."""
    with database.session() as session:
        return reply(runs.get_run(session, key))


@router.get("/runs/{key}/timeline", dependencies=[needs(Scope.READ)], response_model=None)
def get_timeline(key: str, database: Db, points: int = 600) -> JSONResponse:
    """The run's metrics, steps and captures over time, thinned to about `points` instants per series."""
    with database.session() as session:
        return reply(timeline.run_timeline(session, key, points=points))
