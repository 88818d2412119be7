"""Captures that somebody cancels: the agent drops them, the run is free for the next, nobody calls it a failure."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from api_calls import HOST, Capture, Served, ok, refused, serving, trace_file
from processes import tightship
from sqlalchemy import select

from tightship_platform.api.auth import create_token
from tightship_platform.database.models import Audit
from tightship_platform.vocabulary import Scope

ADMIN = "admin-token-of-tests"


@dataclass
class Deployment:
    served: Served
    http: httpx.Client
    """Of ann, of the team red."""
    other: httpx.Client
    environ: dict[str, str]


@pytest.fixture(scope="module")
def deployed(make_platform_env: Callable[..., Any]) -> Iterator[Deployment]:
    env = make_platform_env()
    with serving(replace(env.settings, token=ADMIN)) as served:
        scopes = [Scope.INGEST, Scope.READ, Scope.CAPTURE]
        with served.database.session() as session:
            ann, bob = (create_token(session, name, scopes, team=team) for name, team in (("ann", "red"), ("bob", "b")))
        environ = env.environ | {"TIGHTSHIP_SERVER": served.url, "TIGHTSHIP_TOKEN": ann}
        with served.http(ann) as http, served.http(bob) as other:
            yield Deployment(served, http, other, environ)


@pytest.fixture
def capture(deployed: Deployment) -> Capture:
    """Of a new run."""
    return Capture(deployed.http, run=secrets.token_hex(8))


def advance(capture: Capture, state: str) -> None:
    """Have the agent bring it into a state."""
    states = ["requested", "leased", "armed", "recording", "written"]
    for reached in states[1 : states.index(state) + 1]:
        if reached == "leased":
            capture.lease()
        else:
            capture.report(reached, expected=[{"rank": 0, "pid": 100}])
    assert capture.now()["state"] == state


@pytest.mark.parametrize("state", ["requested", "leased", "armed", "recording", "written"])
def test_it_ends_in_every_state_and_the_run_is_free_for_the_next(
    deployed: Deployment, capture: Capture, state: str
) -> None:
    advance(capture, state)
    answer = ok(deployed.http.post(f"/captures/{capture.key}/cancel"))
    assert (answer["state"], answer["reason"]) == ("failed", "cancelled by ann")
    with deployed.served.database.session() as session:
        found = session.execute(select(Audit.actor, Audit.action).where(Audit.target == capture.key)).all()
    assert [tuple(row) for row in found] == [("ann", "capture.request"), ("ann", "capture.cancel")]
    if state != "requested":
        assert capture.report("written", expected=[{"rank": 0, "pid": 100}])["state"] == "failed", "the agent learns it"
    refused(capture.put(trace_file()), 409, "failed")
    capture.key = ok(deployed.http.post("/captures", json={"target": capture.run}))["capture"]
    capture.write()
    ok(capture.put(trace_file()))
    assert capture.now()["state"] == "uploaded"
    assert ok(deployed.http.get("/collection"))["failed"] == 0


def test_twice_is_one_line(deployed: Deployment, capture: Capture) -> None:
    done = tightship(deployed.environ, "captures", "cancel", capture.key[:10])
    assert (done.returncode, done.stdout) == (0, f"Capture {capture.key} of run {capture.run} is cancelled.\n")
    done = tightship(deployed.environ, "captures", "cancel", capture.key)
    why = f"Capture {capture.key} is failed already (cancelled by ann); there is nothing to cancel"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"tightship: {why}\n")
    assert [one["capture"] for one in json.loads(tightship(deployed.environ, "captures", "--json").stdout)]


def test_what_is_recorded_whole_stays(deployed: Deployment, capture: Capture) -> None:
    capture.write()
    ok(capture.put(trace_file()))
    refused(deployed.http.post(f"/captures/{capture.key}/cancel"), 409, "All traces", "nothing to cancel")
    assert capture.now()["state"] == "uploaded"


def test_one_that_failed_otherwise_keeps_its_reason(deployed: Deployment, capture: Capture) -> None:
    capture.lease()
    capture.report("failed", reason="out of luck")
    refused(deployed.http.post(f"/captures/{capture.key}/cancel"), 409, "failed already (out of luck)")
    assert capture.now()["reason"] == "out of luck"
    assert ok(deployed.http.get("/collection"))["failed"] == 1


def test_another_teams_is_not_found(deployed: Deployment, capture: Capture) -> None:
    for key in (capture.key, capture.key[:10], "@"):
        refused(deployed.other.post(f"/captures/{key}/cancel"), 404, key)
    done = tightship(deployed.environ, "captures", "cancel", "@", "--json")
    assert json.loads(done.stdout)["capture"] == capture.key
    assert ok(deployed.http.post("/captures/lease", json={"host": HOST, "runs": [capture.run]})) == {
        "leases": [],
        "stacks": [],
    }
