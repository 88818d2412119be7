"""Two teams, two users, three hosts: what each token sees and touches, on every route."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
from api_calls import Served, heartbeat, ok, run_record, sha256, trace_file
from route_matrix import COUNTS, LISTS, OF_NOBODY, OF_ONE
from sqlalchemy import select
from sqlalchemy.orm import Session
from waiting import PATIENCE_S, wait_for

from tightship_dashboard.pages import (
    did_it_work,
    is_the_collection_healthy,
    one_action,
    one_finding,
    one_run,
    one_trace,
    runs,
    where_do_device_hours_go,
    who_did_what,
    will_it_fit,
)
from tightship_dashboard.server import routing
from tightship_platform.api.auth import create_token
from tightship_platform.api.scopes import route_scopes
from tightship_platform.client import API
from tightship_platform.database import models, teams
from tightship_platform.database.engine import Database
from tightship_platform.ingest.actions.act import act
from tightship_platform.queries.runs import list_runs
from tightship_platform.queries.workflows import list_workflows
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import ActionKind, Scope
from tightship_platform.wire import MAX_LEASE_WAIT_S

ALL = [Scope.INGEST, Scope.READ, Scope.CAPTURE, Scope.APPLY, Scope.DELETE]
RUNS = {"red": "4ed" + "0" * 13, "blue": "b10e" + "0" * 12}
HOSTS = {"red": "node-red", "blue": "node-blue"}
ADMIN = "admin-token-of-tests"


@dataclass
class Team:
    """A team's token, and what it has on the server."""

    name: str
    http: httpx.Client
    names: dict[str, Any] = field(default_factory=dict)

    @property
    def marks(self) -> list[str]:
        """What only answers about this team hold."""
        return [RUNS[self.name], f"secret-of-{self.name}", str(self.names["capture"])]


@dataclass
class Fleet:
    served: Served
    teams: dict[str, Team]
    admin: httpx.Client


@pytest.fixture
def fleet(platform_env: Any, serve: Callable[..., Served]) -> Iterator[Fleet]:
    served = serve(replace(platform_env.settings, token=ADMIN))
    with ExitStack() as stack:
        admin = stack.enter_context(served.http(ADMIN))
        made = {}
        for name in RUNS:
            with served.database.session() as session:
                token = create_token(session, name, ALL, team=name, user=f"user-{name}")
            team = Team(name, stack.enter_context(served.http(token)))
            fill(served, team)
            made[name] = team
        ok(admin.post("/hosts/heartbeat", json=heartbeat("0" * 16) | {"host": "node-3"}))
        yield Fleet(served, made, admin)


def fill(served: Served, team: Team) -> None:
    """A run that lives, with a capture, its trace, a finding, an opportunity and an analysis that cannot be read."""
    run, host, secret = RUNS[team.name], HOSTS[team.name], f"secret-of-{team.name}"
    record = run_record(
        run, workflow="train", host=host, command=["python", secret], labels={"k": secret}, team="claimed"
    )
    ok(team.http.post("/runs", json=record))
    ok(team.http.post("/hosts/heartbeat", json=heartbeat(run) | {"host": host}))
    used = {"time_ns": now_ns(), "run": run, "device": "cpu", "cpu_cores": 0.5}
    ok(team.http.post("/batches", json={"host": host, "run_samples": [used]}))
    key = ok(team.http.post("/captures", json={"target": run}))["capture"]
    ok(team.http.post("/captures/lease", json={"host": host, "runs": [run]}))
    armed = {"host": host, "state": "armed", "expected": [{"rank": 0, "pid": 100}]}
    ok(team.http.post(f"/captures/{key}/report", json=armed))
    data = trace_file()
    put = {"params": {"pid": 100, "host": host}, "headers": {"x-sha256": sha256(data)}, "content": data}
    trace = ok(team.http.put(f"/captures/{key}/traces/0", **put))["trace"]
    with served.database.session() as session:
        row = session.scalars(select(models.Run).where(models.Run.key == run)).one()
        saving = {"value": 1, "low": 1, "high": 1, "method": "measured", "title": secret, "fix": "none"}
        finding = models.Finding(
            run_id=row.id, trace_id=trace, rule="r", place=secret, unit="ns", evidence=[], created_ns=1, **saving
        )
        opportunity = models.Opportunity(
            workflow_id=row.workflow_id,
            key="k",
            rules=[],
            findings=[],
            device_ns=1,
            position=1,
            state="open",
            updated_ns=1,
            **saving,
        )
        session.add_all([finding, opportunity])
        session.flush()
        action = act(session, opportunity.id, ActionKind.APPLY, actor="ann", reason=secret, now=1)
        team.names = {
            "run": run,
            "host": host,
            "capture": key,
            "trace": trace,
            "finding": finding.id,
            "opportunity": opportunity.id,
            "action": action.id,
            "workflow": row.workflow.name,
            "user": row.user_name,
            "team": row.team,
        }


def answers_of(http: httpx.Client, fleet: Fleet) -> dict[str, str]:
    return {path: http.get(path).text for path in LISTS.values()}


def test_every_route_has_its_place_in_the_matrix(fleet: Fleet) -> None:
    routes = {
        (method, path.removeprefix(API))
        for path, methods, _ in route_scopes(fleet.served.app)
        if path.startswith(API + "/")
        for method in methods - {"HEAD"}
    }
    assert routes == {*OF_ONE, *LISTS, *OF_NOBODY}


@pytest.mark.parametrize("team", RUNS)
def test_a_token_sees_and_touches_what_is_its_teams_alone(team: str, fleet: Fleet) -> None:
    own = fleet.teams[team]
    other = next(one for name, one in fleet.teams.items() if name != team)
    before = [fleet.admin.get(path).json() for path in ("/runs", "/captures", "/opportunities", "/workflows")]
    for route, (call, status) in OF_ONE.items():
        answer = call(own.http, other.names)
        assert answer.status_code == status, (route, answer.text)
        assert f"secret-of-{other.name}" not in answer.text, route
    after = [fleet.admin.get(path).json() for path in ("/runs", "/captures", "/opportunities", "/workflows")]
    assert after == before
    for path, text in answers_of(own.http, fleet).items():
        assert not [mark for mark in other.marks if mark in text], path
        if path not in COUNTS:
            assert [mark for mark in (*own.marks, own.names["workflow"]) if mark in text], path
    for filtered in (f"/captures?workflow={other.names['workflow']}", f"/runs?workflow={other.names['workflow']}"):
        assert ok(own.http.get(filtered)) == []
    for named in (f"/captures?run={other.names['run']}", f"/findings?run={other.names['run']}"):
        assert own.http.get(named).status_code == 404
    for path in ("/runs/{run}", "/runs/{run}/timeline", "/captures/{capture}", "/findings/{finding}"):
        ok(own.http.get(path.format(**own.names)))
    assert own.http.get(f"/traces/{own.names['trace']}/file").status_code == 200
    assert ok(own.http.get(f"/runs/{own.names['run']}"))["user"] == f"user-{team}"


PAGES = {
    where_do_device_hours_go: "/",
    runs: "/runs",
    one_run: "/runs/{run}",
    one_finding: "/findings/{finding}",
    one_trace: "/traces/{capture}",
    will_it_fit: "/will-it-fit?workflow={workflow}",
    did_it_work: "/did-it-work",
    one_action: "/did-it-work/{action}",
    is_the_collection_healthy: "/collection",
    who_did_what: "/audit",
}
OFFERS = {
    "output": "search.data",
    "outputs": {"id": "search", "property": "data"},
    "inputs": [{"id": "search-asked", "property": "data", "value": 1}],
    "changedPropIds": ["search-asked.data"],
}


def drawn(http: httpx.Client, address: str) -> str:
    """A page as its callback draws it."""
    path, _, query = address.partition("?")
    outputs = [{"id": "page", "property": "children"}, {"id": "title", "property": "data"}]
    body = {
        "output": "..page.children...title.data..",
        "outputs": outputs,
        "inputs": [{"id": "url", "property": "pathname", "value": path}],
        "state": [{"id": "url", "property": "search", "value": f"?{query}" if query else ""}],
        "changedPropIds": ["url.pathname"],
    }
    answer = http.post("/_dash-update-component", json=body)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_pages_and_the_search_show_a_teams_own_alone(fleet: Fleet) -> None:
    own, other = fleet.teams["red"], fleet.teams["blue"]
    pages = {module for name, module in vars(routing).items() if hasattr(module, "PATH")}
    assert pages == set(PAGES), "a page has no place in the matrix"
    bearer = {"authorization": own.http.headers["authorization"]}
    with httpx.Client(base_url=fleet.served.url, headers=bearer, trust_env=False, timeout=PATIENCE_S) as http:
        for page, address in PAGES.items():
            text = drawn(http, address.format(**own.names))
            assert "Nothing here" not in text, page
            assert not [mark for mark in (*other.marks, other.names["workflow"]) if mark in text], page
            text = drawn(http, address.format(**other.names)) + http.get(address.format(**other.names)).text
            assert f"secret-of-{other.name}" not in text, page
            if "{" in address and page is not will_it_fit:
                assert "Nothing here" in text, page
        offers = http.post("/_dash-update-component", json=OFFERS)
        assert own.names["run"] in offers.text
        assert not [mark for mark in (*other.marks, other.names["workflow"]) if mark in offers.text]


def test_an_administrator_sees_all_and_nobody_nothing(fleet: Fleet) -> None:
    for path, text in answers_of(fleet.admin, fleet).items():
        if path not in (*COUNTS, "/workflows"):
            assert all([mark for mark in team.marks if mark in text] for team in fleet.teams.values()), path
    with fleet.served.http("") as nobody:
        for call, _ in OF_ONE.values():
            assert call(nobody, fleet.teams["red"].names).status_code == 401
        assert {nobody.get(path).status_code for path in LISTS.values()} == {401}


def test_an_agent_of_a_team_takes_captures_of_every_run_of_its_host(fleet: Fleet) -> None:
    """Its token says which host it serves. And who of a team waits first looks for the others, too."""
    run, polls = "d" * 16, fleet.served.app.state.polls
    ok(fleet.admin.post("/runs", json=run_record(run, host=HOSTS["red"])))
    with ThreadPoolExecutor() as pool:

        def wait(team: str, key: str) -> Future[Any]:
            body = {"host": HOSTS[team], "runs": [key], "wait_s": MAX_LEASE_WAIT_S}
            asked = pool.submit(lambda: ok(fleet.teams[team].http.post("/captures/lease", json=body)))
            wait_for(lambda: key in polls._waiting)
            return asked

        for team, key in [("blue", RUNS["blue"]), ("red", run)]:
            asked = wait(team, key)
            wanted = ok(fleet.admin.post("/captures", json={"target": key}))["capture"]
            assert [lease["capture"] for lease in asked.result(PATIENCE_S)["leases"]] == [wanted]


def test_a_name_of_a_workflow_is_one_within_a_team(fleet: Fleet) -> None:
    names = {team.name: team.names["workflow"] for team in fleet.teams.values()}
    assert names == {"red": "train", "blue": "blue/train"}
    listed = {row["workflow"]: row["team"] for row in ok(fleet.admin.get("/workflows"))}
    assert listed == {"train": "red", "blue/train": "blue", "unknown": None}
    ok(fleet.admin.post("/runs", json=run_record("c" * 16, workflow="train")))
    assert ok(fleet.admin.get(f"/runs/{'c' * 16}"))["workflow"] == "no team/train"
    # The agent's record, which has no team, moves nothing.
    moved = run_record(RUNS["blue"], workflow="train", host=HOSTS["blue"], user="user-blue")
    ok(fleet.admin.post("/runs", json=moved))
    assert ok(fleet.admin.get(f"/runs/{RUNS['blue']}"))["workflow"] == "blue/train"


# ---- every table -----------------------------------------------------------------------------------------------------


def test_every_table_is_a_teams_or_everybodys() -> None:
    filtered = {column.class_.__name__ for column in (*teams._OF_RUNS, *teams._OF_WORKFLOWS)}
    kinds = [filtered | {"Run"}, teams.OF_OTHERS, teams.OF_ALL_TEAMS]
    assert sum(map(len, kinds)) == len(set().union(*kinds))
    assert set().union(*kinds) == {mapper.class_.__name__ for mapper in models.Base.registry.mappers}


@pytest.fixture
def seen_by_red(database: Database) -> Iterator[Session]:
    with database.session() as session:
        for number, team in enumerate(("red", "blue", None)):
            workflow = models.Workflow(name=f"w{number}", labels={})
            session.add(workflow)
            session.flush()
            run = models.Run(
                key=f"r{number}", workflow_id=workflow.id, team=team, command=[], labels={}, state="running", ranks=[]
            )
            run.start_ns = run.last_seen_ns = now_ns()
            session.add(run)
            session.flush()
            capture = models.Capture(key=f"c{number}", run_id=run.id, requested_by="x", params={}, state="requested")
            capture.requested_ns = capture.expires_ns = 1
            capture.stages, capture.expected = {}, []
            session.add(capture)
            session.flush()
            session.add(models.CaptureAnalysis(capture_id=capture.id, catalogue="x", body=b"", created_ns=1))
    teams.see_team("red")
    try:
        with database.session() as session:
            yield session
    finally:
        teams.see_team(None)


def test_no_way_to_ask_shows_rows_of_others(seen_by_red: Session) -> None:
    session, run = seen_by_red, models.Run
    assert [one.key for one in session.scalars(select(run))] == ["r0"]
    assert [session.get(run, key) is not None for key in (1, 2, 3)].count(True) == 1
    assert session.scalars(select(run.key).where(run.key.in_(["r0", "r1"]))).all() == ["r0"]
    assert session.scalars(select(models.Capture.key)).all() == ["c0"]
    assert [one.run.key for one in session.scalars(select(models.Capture))] == ["r0"]
    assert len(session.scalars(select(models.CaptureAnalysis)).all()) == 1
    joined = select(models.Workflow.name).join(run, run.workflow_id == models.Workflow.id)
    assert session.scalars(joined).all() == ["w0"]
    inner = select(run.id).subquery()
    assert len(session.execute(select(inner)).all()) == 1
    assert [one.run for one in list_runs(session)] == ["r0"]
    assert [(one.workflow, one.runs) for one in list_workflows(session)] == [("w0", 1)]
