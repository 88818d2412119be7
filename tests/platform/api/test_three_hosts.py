"""Two teams, two users, three hosts, each with its own network, agent and capture: each token on each route."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import network_hosts
import pytest
from api_calls import Served, ok, serving
from route_matrix import LISTS, OF_NOBODY, OF_ONE
from sqlalchemy import select
from waiting import wait_for

from tightship_platform.api.auth import create_token
from tightship_platform.api.enrolment import make_word
from tightship_platform.api.scopes import route_scopes
from tightship_platform.client import API
from tightship_platform.database import models
from tightship_platform.units import NS_PER_S
from tightship_platform.vocabulary import Scope

ADMIN = "admin-token-of-tests"
JOB = Path(__file__).parents[2] / "support" / "kineto_job.py"
USERS = {"alice": "red", "bob": "blue"}
"""User → team."""
HOSTS = {"gpu-1": "alice", "gpu-2": "bob", "gpu-3": "alice"}
"""Host → whose jobs run there."""
TOUCHES_A_HOST = {"/hosts/heartbeat", "/batches", "/captures/lease", "/captures/{key}/report"}
TOUCHES_A_HOST |= {
    "/runs/{key}/stacks/answer",
    "/captures/{key}/traces/{rank}",
    "/prometheus/write",
    "/otlp/v1/metrics",
}
GONE = {
    "/findings/{key}",
    "/runs/{key}/stacks",
    "/opportunities/{key}/apply",
    "/opportunities/{key}/dismiss",
    "/opportunities/{key}/reopen",
    "/captures/{key}/analysis",
    "/fleets/{name}/captures",
    "/fleets/{name}/captures/{key}/traces/{rank}",
}
"""Nothing of the kind is there yet: also who may see it gets 404 or 409."""


def lease(http: httpx.Client, names: dict[str, Any]) -> httpx.Response:
    """As the run's agent does; whoever asks for no run gets an empty list."""
    return http.post("/captures/lease", json={"host": names["host"], "runs": [names["run"]]})


CALLS = {route: call for route, (call, _) in OF_ONE.items()} | {("POST", "/captures/lease"): lease}


@dataclass
class Fleet:
    served: Served
    clients: dict[str, httpx.Client] = field(default_factory=dict)
    """By who has the token; `nobody` has none."""
    names: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Host → what is on it, by the names that the routes' calls use."""


@pytest.fixture(scope="module")
def fleet(make_platform_env: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    if why := network_hosts.why_not():
        pytest.skip(why)
    env = make_platform_env()
    with ExitStack() as stack:
        served = stack.enter_context(serving(replace(env.settings, token=ADMIN), host="0.0.0.0", address="0.0.0.0"))
        made = Fleet(served)
        tokens = {"admin": ADMIN, "nobody": ""}
        with served.database.session() as session:
            for user, team in USERS.items():
                session.add(models.UserTeam(user_name=user, team=team))  # for runs that the agent is first to report
                tokens[f"launcher of {user}"] = create_token(
                    session, f"launch-{user}", [Scope.INGEST], team=team, user=user
                )
                scopes = [Scope.READ, Scope.CAPTURE, Scope.APPLY]
                tokens[f"reader of {user}"] = create_token(session, f"read-{user}", scopes, team=team, user=user)
        for number, (name, user) in enumerate(HOSTS.items(), start=1):
            host = stack.enter_context(network_hosts.network_host(name, number, user=user))
            with served.database.session() as session:
                word = make_word(session, name, lifetime_ns=600 * NS_PER_S)
            with served.http(word) as http:
                tokens[f"agent of {name}"] = ok(http.post("/hosts/enrol", json={"host": name}))["token"]
            start(stack, env, host, tokens, user, served, tmp_path_factory.mktemp(name))
        for who, token in tokens.items():
            made.clients[who] = stack.enter_context(served.http(token))
        admin = made.clients["admin"]
        wait_for(lambda: len(ok(admin.get("/runs"))) == len(HOSTS), "a run on each host")
        for run in [ok(admin.get(f"/runs/{one['run']}")) for one in ok(admin.get("/runs"))]:
            capture = ok(admin.post("/captures", json={"target": run["run"], "params": {"passes": 1}}))["capture"]
            made.names[run["host"]] = {"run": run["run"], "host": run["host"], "capture": capture, "finding": 1}
        for names in made.names.values():
            key = names["capture"]
            wait_for(lambda key=key: ok(admin.get(f"/captures/{key}"))["state"] == "uploaded", f"the capture {key}")  # type: ignore[misc]
            with served.database.session() as session:
                names["trace"] = session.scalar(
                    select(models.Trace.id).join(models.Capture).where(models.Capture.key == key)
                )
            run = ok(admin.get(f"/runs/{names['run']}"))
            names |= {"workflow": run["workflow"], "opportunity": 1, "user": run["user"], "team": run["team"]}
        yield made


def start(stack: ExitStack, env: Any, host: Any, tokens: dict[str, str], user: str, served: Served, home: Path) -> None:
    """An agent with the host's token, and a job that its user launches there."""
    runtime = Path(f"{env.runtime_dir}-{host.name[-1]}")
    stack.callback(shutil.rmtree, runtime, ignore_errors=True)
    environ = env.environ | {
        "TIGHTSHIP_HOME": str(home),
        "TIGHTSHIP_RUNTIME_DIR": str(runtime),
        "TIGHTSHIP_AGENT_RUNS": "launched",
        "TIGHTSHIP_HOST_NAME": host.name,
        "TIGHTSHIP_SERVER": served.url.replace("127.0.0.1", host.gateway),
    }
    tightship = [sys.executable, "-m", "tightship_platform.cli"]
    play = f"exec {sys.executable} {JOB} \"$TIGHTSHIP_RUN_DIR\" '{json.dumps({'rank': 0})}'"
    launcher = [*tightship, "run", "--workflow", "train", "--", "sh", "-c", play]
    for who, command in (
        (f"agent of {host.name}", [*tightship, "agent", "--interval", "500ms"]),
        (f"launcher of {user}", launcher),
    ):
        with (home / "parts.log").open("ab") as log:
            process = subprocess.Popen(
                [*host.inside, *command],
                env=environ | {"TIGHTSHIP_TOKEN": tokens[who]},
                stdout=log,
                stderr=log,
            )
        stack.callback(process.wait)
        stack.callback(process.kill)


def may(who: str, scope: Scope | None, path: str, names: dict[str, Any]) -> bool:
    """The whole of the rules: what this token may do with what is on this host."""
    if path == "/hosts/enrol":
        return who == "admin"  # whose token is no one-time word, and who hears that
    if scope is None or who == "admin":
        return True
    if who == "nobody":
        return False
    if path.startswith("/fleets/"):
        return False  # those who import speak for more than one host or user
    kind, _, of = who.partition(" of ")
    if kind == "reader":
        return scope in (Scope.READ, Scope.CAPTURE, Scope.APPLY) and names["team"] == USERS[of]
    if scope is not Scope.INGEST:
        return False
    if kind == "agent":
        return of == names["host"]
    return path not in TOUCHES_A_HOST and names["user"] == of


def test_each_run_is_of_its_user_team_and_host(fleet: Fleet) -> None:
    found = {name: (names["user"], names["team"]) for name, names in fleet.names.items()}
    assert found == {name: (user, USERS[user]) for name, user in HOSTS.items()}


def test_each_token_does_on_each_route_what_it_may(fleet: Fleet) -> None:
    scopes = {
        (method, path.removeprefix(API)): scope
        for path, methods, scope in route_scopes(fleet.served.app)
        for method in methods
    }
    wrong = []
    for who, http in fleet.clients.items():
        for names in fleet.names.values():
            for (method, path), call in CALLS.items():
                permitted = may(who, scopes[method, path], path, names)
                if permitted and method == "DELETE":
                    continue  # the others have to find it there
                answer = call(http, names)
                of_another = answer.status_code == 409 and " is of " in answer.text
                refused = answer.status_code in (401, 403, 404) or of_another or "were not stored" in answer.text
                if path == "/captures/lease" and answer.text == '{"leases":[],"stacks":[]}':
                    refused = not permitted  # nothing waits: nothing is given
                if path in GONE and answer.status_code in (404, 409):
                    refused = not permitted
                if refused is permitted:
                    wrong.append((who, method, path, names["host"], answer.status_code, answer.text[:100]))
    assert not wrong, "\n".join(map(str, wrong))


def test_lists_hold_what_is_of_the_tokens_team(fleet: Fleet) -> None:
    for who, http in fleet.clients.items():
        kind, _, of = who.partition(" of ")
        for _, path in LISTS:
            answer = http.get(LISTS["GET", path])
            if kind not in ("admin", "reader"):
                assert answer.status_code == (401 if who == "nobody" else 403), (who, path)
                continue
            for names in fleet.names.values():
                shown = names["run"] in answer.text
                assert not shown or kind == "admin" or names["team"] == USERS[of], (who, path)
                if path in ("/runs", "/captures"):
                    assert shown is (kind == "admin" or names["team"] == USERS[of]), (who, path)
    assert {path for _, path in OF_NOBODY} >= {"/live", "/ready"}
