"""Stacks of live runs: asked for by people, brought by the agents of their hosts."""

from __future__ import annotations

from fastapi import Request

from tightship_platform.api.auth import reporter, require
from tightship_platform.api.reply import Answer, Db, count_request
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.captures import stacks
from tightship_platform.database.audit import audit
from tightship_platform.errors import NotFound
from tightship_platform.queries.stacks import last_stacks
from tightship_platform.results.stacks import StackDump
from tightship_platform.vocabulary import Scope
from tightship_platform.wire import RunReceived, StackAnswer, StackRequest

router = scoped_router("stacks")


@router.post("/runs/{key}/stacks", dependencies=[needs(Scope.CAPTURE)], response_model=StackDump)
def ask(key: str, body: StackRequest, database: Db) -> Answer:
    """Ask the agent of a live run what its processes are at; answers what is known so far. Reading a stack stops its
    process for some milliseconds. Who asks while an answer is awaited waits for the same one."""
    caller = require(Scope.CAPTURE)
    with database.session() as session:
        run = stacks.ask(session, key, by=caller.name, native=body.native)
        audit(session, caller.name, "stacks.request", run, native=body.native)
        dump = last_stacks(session, run)
    return Answer(dump)


@router.get("/runs/{key}/stacks", dependencies=[needs(Scope.READ)], response_model=StackDump)
def read(key: str, database: Db) -> Answer:
    """What the processes of a run were at when its agent last answered."""
    with database.session() as session:
        dump = last_stacks(session, key)
    if dump is None:
        raise NotFound("stacks of run", key[:40], f"ask for them with `tightship why {key[:40]}`")
    return Answer(dump)


@router.post("/runs/{key}/stacks/answer", dependencies=[needs(Scope.INGEST)], response_model=RunReceived)
def answer(key: str, body: StackAnswer, database: Db, request: Request) -> Answer:
    """An agent brings the stacks that it was asked for."""
    count_request(request, body.host)
    with database.session() as session:
        stacks.answer(session, key, body, reporter=reporter())
    return Answer(RunReceived(run=key))
