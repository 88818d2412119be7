"""A capture that may abort a job is asked for by whose job it is, or by an administrator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import httpx
import pytest
from api_calls import RUN, Served, ok, refused, run_record
from sqlalchemy import select

from tightship_platform.api.auth import create_token
from tightship_platform.database.models import Audit, Capture, CaptureSchedule
from tightship_platform.vocabulary import Scope

ADMIN = "admin-token-of-tests"
MAY: dict[str, tuple[dict[str, str], bool, bool]] = {
    "no team": ({}, False, False),
    "the user": ({"user": "alice"}, True, False),
    "another user": ({"user": "bob"}, False, False),
    "the team": ({"team": "red"}, True, True),
}
"""Token → for whom it is, whether it may insist for one run, and for all runs of the workflow."""


@pytest.fixture
def clients(platform_env: Any, serve: Callable[..., Served]) -> Any:
    """The server, with a run of alice in team red, and a client of each token."""
    served = serve(replace(platform_env.settings, token=ADMIN))
    with ExitStack() as stack:
        made: dict[str, httpx.Client] = {"administrator": stack.enter_context(served.http(ADMIN))}
        with served.database.session() as session:
            of_alice = create_token(session, "reporter", [Scope.INGEST], user="alice", team="red")
            tokens = {
                name: create_token(session, name, [Scope.CAPTURE], **bound) for name, (bound, _, _) in MAY.items()
            }
        ok(stack.enter_context(served.http(of_alice)).post("/runs", json=run_record()))
        made |= {name: stack.enter_context(served.http(token)) for name, token in tokens.items()}
        yield served, made


def test_who_may_insist(clients: tuple[Served, dict[str, httpx.Client]]) -> None:
    served, made = clients
    allowed = {name: (run, workflow) for name, (_, run, workflow) in MAY.items()} | {"administrator": (True, True)}
    insist = {"params": {"insist": True}}
    for name, (run, workflow) in allowed.items():
        http, asked = made[name], {"target": RUN} | insist
        schedule = {"every_ns": 3600 * 10**9} | insist
        for is_allowed, answer in (
            (run, lambda http=http, asked=asked: http.post("/captures", json=asked)),
            (workflow, lambda http=http, schedule=schedule: http.post("/workflows/vision/schedule", json=schedule)),
        ):
            if is_allowed:
                ok(answer())
            else:
                refused(answer(), 403, name, "insist")
        ok(http.post("/captures", json={"target": RUN}))  # what cannot harm is anybody's with the scope
    with served.database.session() as session:
        asked_by = [c.requested_by for c in session.scalars(select(Capture)) if c.params["insist"]]
        assert sorted(asked_by) == ["environment", "the team", "the user"]
        assert session.scalars(select(CaptureSchedule)).one().params["insist"]
        audited = session.scalars(select(Audit.actor).where(Audit.action == "workflow.schedule")).all()
        assert sorted(audited) == ["environment", "the team"]
