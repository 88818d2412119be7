"""Captures: asked for by people, carried out by agents."""

from __future__ import annotations

import dataclasses

from starlette.responses import JSONResponse

from tightship_platform import captures as capture_flow
from tightship_platform.api.auth import LOOPBACK, audit, require
from tightship_platform.api.reply import Db, reply
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.queries import captures
from tightship_platform.vocabulary import Scope
from tightship_platform.wire import CaptureReport, CaptureRequest, LeaseRequest

router = scoped_router("captures")


@router.post("/captures", dependencies=[needs(Scope.CAPTURE)], response_model=None)
def ask(body: CaptureRequest, database: Db) -> JSONResponse:
    """Ask for one trace per rank of a running run; answers the capture. It says who asked: the token, where there is
    one, else what the request says."""
    caller = require(Scope.CAPTURE)
    if caller is not LOOPBACK:
        body.requested_by = caller.name
    with database.session() as session:
        capture = capture_flow.request(session, body)
        audit(session, caller.name, "capture.request", capture.key, run=capture.run.key, params=capture.params)
        return_value = captures.get_capture(session, capture.key)
    return reply(return_value)


@router.post("/captures/lease", dependencies=[needs(Scope.INGEST)], response_model=None)
def lease(body: LeaseRequest, database: Db) -> JSONResponse:
    """An agent takes captures of the runs that it sees alive. Answers `{"leases": [Lease]}`."""
    with database.session() as session:
        leases = [dataclasses.asdict(lease) for lease in capture_flow.lease(session, body)]
    return reply({"leases": leases})


@router.post("/captures/{key}/report", dependencies=[needs(Scope.INGEST)], response_model=None)
def report(key: str, body: CaptureReport, database: Db) -> JSONResponse:
    """An agent tells how far a capture is, which renews its lease; answers the capture."""
    with database.session() as session:
        capture_flow.report(session, key, body)
        return_value = captures.get_capture(session, key)
    return reply(return_value)


@router.get("/captures", dependencies=[needs(Scope.READ)], response_model=None)
def list_captures(database: Db, run: str | None = None, workflow: str | None = None, limit: int = 200) -> JSONResponse:
    """Captures, newest first: capture, run, workflow, state, reason, requested_ns, requested_by, stages (state → ns),
    expected, params, ranks, latency_s."""
    with database.session() as session:
        return reply(captures.list_captures(session, run=run, workflow=workflow, limit=limit))


@router.get("/captures/{key}", dependencies=[needs(Scope.READ)], response_model=None)
def get_capture(key: str, database: Db) -> JSONResponse:
    """One capture."""
    with database.session() as session:
        return reply(captures.get_capture(session, key))
