"""Runs: announced by launchers, read by everybody."""

from __future__ import annotations

from tightship_platform import ingest
from tightship_platform.api.auth import reporter, require
from tightship_platform.api.filters import Wanted
from tightship_platform.api.reply import Answer, Db
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.database import ids
from tightship_platform.database.audit import audit
from tightship_platform.queries import runs, timeline
from tightship_platform.results.run import Run, RunDetail
from tightship_platform.results.run_record import RunRecord
from tightship_platform.results.timeline import Timeline
from tightship_platform.vocabulary import Scope
from tightship_platform.wire import RunEdit, RunReceived

router = scoped_router("runs")


@router.post("/runs", dependencies=[needs(Scope.INGEST)], response_model=RunReceived)
def record(body: RunRecord, database: Db) -> Answer:
    """A run starts or has ended, as its launcher reports it. It belongs to the host, user and team that first reported
    it; a record from others is refused."""
    with database.session() as session:
        key = ingest.apply_run(session, body, reporter=reporter())
    return Answer(RunReceived(run=key))


@router.get("/runs", dependencies=[needs(Scope.READ)], response_model=list[Run])
def list_runs(database: Db, filters: Wanted, after: str | None = None, limit: int = 200) -> Answer:
    """Runs, newest first; of those after the run `after`, the last one of the page before. `since` and `until` are
    about their starts."""
    with database.session() as session:
        return Answer(runs.list_runs(session, filters, after=after, limit=limit))


@router.get("/runs/{key}", dependencies=[needs(Scope.READ)], response_model=RunDetail)
def get_run(key: str, database: Db) -> Answer:
    """One run with everything that is known of it."""
    with database.session() as session:
        return Answer(runs.get_run(session, key))


@router.patch("/runs/{key}", dependencies=[needs(Scope.APPLY)], response_model=RunDetail)
def edit(key: str, body: RunEdit, database: Db) -> Answer:
    """Give a run a name, or change its labels; answers the run. What its launcher or agent reports later changes
    nothing of that."""
    with database.session() as session:
        run = ingest.edit_run(session, ids.find_key(session, ids.RUN, key), body)
        audit(session, require(Scope.APPLY).name, "run.edit", run.key, name=body.name, labels=body.labels)
        return_value = runs.get_run(session, run.key)
    return Answer(return_value)


@router.get("/runs/{key}/timeline", dependencies=[needs(Scope.READ)], response_model=Timeline)
def get_timeline(key: str, database: Db, points: int = 600) -> Answer:
    """The run's metrics, steps and captures over time, thinned to about `points` instants per series."""
    with database.session() as session:
        return Answer(timeline.run_timeline(session, key, points=points))
