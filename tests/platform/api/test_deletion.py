"""Deleting runs over the API and by command: who may, what is left, and what comes of them later."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from api_calls import RUN, Capture, Served, heartbeat, ok, refused, run_record, trace_file
from processes import tightship
from sqlalchemy import func, select

from tightship_platform.api.auth import create_token
from tightship_platform.captures.artifact_store import open_artifacts
from tightship_platform.database.models import Audit, RemovedRun, Run, StoredPart, UserTeam
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import Scope

ADMIN = "admin-token-of-tests"


@dataclass
class Deployment:
    """A server, its administrator, and tokens of two teams with every scope but that of an administrator."""

    served: Served
    admin: httpx.Client
    red: httpx.Client
    blue: httpx.Client
    environ: dict[str, str]

    def count(self, model: Any) -> int:
        with self.served.database.session() as session:
            return session.scalar(select(func.count()).select_from(model)) or 0

    def files(self) -> list[str]:
        return [file for file in open_artifacts(self.served.settings).files("traces") if file.endswith(".gz")]


@pytest.fixture
def deployed(platform_env: Any, serve: Callable[..., Served]) -> Iterator[Deployment]:
    served = serve(replace(platform_env.settings, token=ADMIN))
    scopes = [Scope.INGEST, Scope.READ, Scope.CAPTURE, Scope.DELETE]
    with served.database.session() as session:
        red, blue = (create_token(session, team, scopes, team=team, user=f"user-{team}") for team in ("red", "blue"))
        of_nobody = create_token(session, "reader", [Scope.READ, Scope.APPLY, Scope.CAPTURE, Scope.INGEST])
    environ = platform_env.environ | {"TIGHTSHIP_SERVER": served.url, "TIGHTSHIP_TOKEN": ADMIN}
    with served.http(ADMIN) as admin, served.http(red) as of_red, served.http(blue) as of_blue:
        with served.http(of_nobody) as other:
            refused(other.delete(f"/runs/{RUN}"), 403, "delete")
        yield Deployment(served, admin, of_red, of_blue, environ)


def over(http: httpx.Client, run: str, workflow: str = "vision") -> None:
    """A run with an uploaded trace, which has ended."""
    capture = Capture(http, run=run, workflow=workflow)
    capture.write()
    ok(capture.put(trace_file()))
    start_ns = ok(http.get(f"/runs/{run}"))["start_ns"]
    ok(http.post("/runs", json=run_record(run, workflow=workflow, start_ns=start_ns, end_ns=now_ns(), exit_code=0)))


def test_a_run_is_deleted_by_its_team_with_its_traces(deployed: Deployment) -> None:
    over(deployed.red, "a1")
    over(deployed.red, "a2")
    refused(deployed.blue.delete("/runs/a1"), 404, "a1")
    assert len(deployed.files()) == 2
    assert ok(deployed.red.delete("/runs/a1")) == {"kind": "run", "name": "a1", "runs": 1, "left": 0}
    refused(deployed.red.get("/runs/a1"), 404)
    refused(deployed.red.delete("/runs/a1"), 404)
    assert [file.split("/")[1] for file in deployed.files()] == ["a2"]
    assert [row["run"] for row in ok(deployed.red.get("/captures"))] == ["a2"]
    entry = ok(deployed.admin.get("/audit", params={"action": "run.delete"}))[0]
    assert (entry["actor"], entry["target"], json.loads(entry["detail"])) == ("red", "a1", {"runs": 1})
    done = tightship(deployed.environ, "check")
    assert done.returncode == 0
    assert done.stdout == "1 trace file and 0 accounts checked, 0 faults; 0 files that no row names\n"
    # What its agent and launcher still have to say.
    refused(deployed.red.post("/runs", json=run_record("a1")), 410, "a1 was deleted")
    beat = ok(deployed.red.post("/hosts/heartbeat", json=heartbeat("a1")))
    assert beat["refused"] == 1 and "deleted" in beat["refusal"]
    late = {"run": "a1", "rank": 0, "time_ns": now_ns(), "width_ns": 10**9, "steps": 1}
    stored = ok(deployed.red.post("/batches", json={"host": "node-1", "steps": [late, late | {"run": "a2"}]}))
    assert (stored["rows"], stored["refused"], stored["unknown_runs"]) == (2, 1, [])
    refused(deployed.red.post("/captures", json={"target": "a1"}), 404)
    assert deployed.count(Run) == 1


def test_live_runs_are_left_alone(deployed: Deployment) -> None:
    over(deployed.red, "a1")
    ok(deployed.red.post("/runs", json=run_record("a2")))
    for path in ("/runs/a2", "/workflows/vision", "/users/user-red", "/teams/red"):
        refused(deployed.admin.delete(path), 409, "a2")
    assert (deployed.count(Run), deployed.count(RemovedRun), len(deployed.files())) == (2, 0, 1)
    assert ok(deployed.admin.get("/audit", params={"action": "run.delete"})) == []


def test_all_runs_of_a_workflow_a_user_and_a_team(deployed: Deployment) -> None:
    over(deployed.red, "a1", "w")
    over(deployed.red, "a2", "w/2")
    for run in ("b1", "b2"):
        record = run_record(run, workflow="w", host="node-2", end_ns=now_ns(), exit_code=0)
        ok(deployed.blue.post("/runs", json=record))
    with deployed.served.database.session() as session:
        session.add(UserTeam(user_name="user-red", team="red"))
    assert ok(deployed.red.delete("/workflows/w/2"))["runs"] == 1
    assert ok(deployed.blue.delete("/users/user-blue"))["runs"] == 2
    assert ok(deployed.red.delete("/teams/red"))["runs"] == 1
    assert (deployed.count(Run), deployed.count(StoredPart), deployed.files()) == (0, 0, [])
    assert deployed.count(UserTeam) == 1, "who is of which team is for administrators"
    assert ok(deployed.admin.delete("/teams/red"))["runs"] == 0
    assert deployed.count(UserTeam) == 0
    assert ok(deployed.admin.get("/workflows")) == []
    assert tightship(deployed.environ, "check").returncode == 0


def test_the_command(deployed: Deployment) -> None:
    over(deployed.red, "a1")
    over(deployed.red, "a2")
    asked = tightship(deployed.environ, "runs", "delete", "a1", input="n\n")
    assert (asked.returncode, deployed.count(Run)) == (1, 2)
    assert "Delete run a1 with its traces?" in asked.stdout
    for wrong in ([], ["a1", "--workflow", "w"]):
        done = tightship(deployed.environ, "runs", "delete", "--yes", *wrong)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("tightship: Name one of RUN, --workflow, --user and --team")
    done = tightship(deployed.environ, "runs", "delete", "nosuch", "--yes")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    done = tightship(deployed.environ, "runs", "delete", "a1", input="y\n")
    assert done.returncode == 0 and done.stdout.endswith("Deleted run a1.\n")
    done = tightship(deployed.environ, "runs", "delete", "--workflow", "vision", "--yes", "--json")
    assert json.loads(done.stdout) == {"kind": "workflow", "name": "vision", "runs": 1, "left": 0}
    assert tightship(deployed.environ, "runs", "--state", "finished").stdout.startswith("Nothing matches")
    with deployed.served.database.session() as session:
        actions = session.scalars(select(Audit.action).where(Audit.action.endswith(".delete")).order_by(Audit.id))
        assert list(actions) == ["run.delete", "workflow.delete"]


def test_what_takes_too_long_is_left_to_the_worker(deployed: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    from tightship_platform.tasks import periodic

    monkeypatch.setattr("tightship_platform.api.routes.removal.AT_ONCE_S", -1.0)
    over(deployed.red, "a1")
    assert ok(deployed.red.delete("/runs/a1")) == {"kind": "run", "name": "a1", "runs": 1, "left": 1}
    refused(deployed.red.post("/runs", json=run_record("a1")), 410)
    assert ok(deployed.red.delete("/runs/a1"))["left"] == 1, "again does no harm"
    periodic.finish_removals()
    assert (deployed.count(Run), deployed.files()) == (0, [])
    assert tightship(deployed.environ, "check").returncode == 0
