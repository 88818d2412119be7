"""Captures: requested by people, carried out by agents, analyzed by workers."""

from __future__ import annotations

from fastapi import Request

from tightship_platform import captures
from tightship_platform.api.analyze_again import analyze_again
from tightship_platform.api.auth import LOOPBACK, reporter, require
from tightship_platform.api.filters import Wanted
from tightship_platform.api.insisting import require_own_risk
from tightship_platform.api.leases import answer_lease
from tightship_platform.api.reply import Answer, Config, Db
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.database import ids
from tightship_platform.database.audit import audit
from tightship_platform.queries import captures as capture_queries
from tightship_platform.queries.analysis import get_analysis
from tightship_platform.results.analysis.run import RunAnalysis
from tightship_platform.results.capture import Capture
from tightship_platform.vocabulary import Scope
from tightship_platform.wire import CaptureReport, CaptureRequest, LeaseRequest, Leases

router = scoped_router("captures")


@router.post("/captures", dependencies=[needs(Scope.CAPTURE)], response_model=Capture)
def ask(body: CaptureRequest, database: Db) -> Answer:
    """Ask for one trace per rank of a running run; answers the capture. It says who asked: the token, where there is
    one, else what the request says. Only a token of the run's team or user, or an administrator's, may `insist`."""
    caller = require(Scope.CAPTURE)
    if caller is not LOOPBACK:
        body.requested_by = caller.name
    with database.session() as session:
        capture = captures.request(session, body)
        require_own_risk(body.params, f"run {capture.run.key}", user=capture.run.user_name)
        audit(session, caller.name, "capture.request", capture.key, run=capture.run.key, params=capture.params)
        return_value = capture_queries.get_capture(session, capture.key)
    return Answer(return_value)


@router.post("/captures/lease", dependencies=[needs(Scope.INGEST)], response_model=Leases)
async def lease(body: LeaseRequest, database: Db, request: Request) -> Answer:
    """An agent takes captures of the runs of its host that it sees alive, and requests for their stacks; with
    `wait_s` it waits for one."""
    return await answer_lease(request, body, request.app.state.polls, database)


@router.post("/captures/{key}/report", dependencies=[needs(Scope.INGEST)], response_model=Capture)
def report(key: str, body: CaptureReport, database: Db) -> Answer:
    """An agent reports how far a capture is, which renews its lease; answers the capture."""
    with database.session() as session:
        captures.report(session, key, body, reporter=reporter())
        return_value = capture_queries.get_capture(session, key)
    return Answer(return_value)


@router.get("/captures", dependencies=[needs(Scope.READ)], response_model=list[Capture])
def list_captures(
    database: Db, filters: Wanted, run: str | None = None, after: str | None = None, limit: int = 200
) -> Answer:
    """Captures, newest first; of those after the capture `after`, the last one of the page before. `since` and `until`
    are about when they were requested."""
    with database.session() as session:
        found = capture_queries.list_captures(session, filters, run=run, after=after, limit=limit)
        return Answer(found)


@router.get("/captures/{key}", dependencies=[needs(Scope.READ)], response_model=Capture)
def get_capture(key: str, database: Db) -> Answer:
    """One capture."""
    with database.session() as session:
        return Answer(capture_queries.get_capture(session, key))


@router.post("/captures/{key}/cancel", dependencies=[needs(Scope.CAPTURE)], response_model=Capture)
def cancel(key: str, database: Db) -> Answer:
    """End a capture that has not yet brought all of its traces; answers the capture, whose reason says who did that."""
    caller = require(Scope.CAPTURE)
    with database.session() as session:
        key = ids.find_key(session, ids.CAPTURE, key)
        captures.cancel(session, key, by=caller.name)
        audit(session, caller.name, "capture.cancel", key)
        return_value = capture_queries.get_capture(session, key)
    return Answer(return_value)


@router.get("/captures/{key}/analysis", dependencies=[needs(Scope.READ)], response_model=RunAnalysis)
def read_analysis(key: str, database: Db) -> Answer:
    """What the traces of a capture say: figures of each rank, findings, and the ranks compared."""
    with database.session() as session:
        return Answer(get_analysis(session, key))


@router.post("/captures/{key}/analysis", dependencies=[needs(Scope.CAPTURE)], response_model=Capture)
def post_analysis(key: str, database: Db, settings: Config) -> Answer:
    """Have the stored traces of a capture analyzed again, as after an upgrade; answers the capture. The result of the
    earlier analysis stays until the new one is done."""
    return Answer(analyze_again(database, settings, key))
