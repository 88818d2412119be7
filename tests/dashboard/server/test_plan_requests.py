"""The page of plans on real processes: two servers and a worker, killed while a plan is made, and started again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import psutil
import pytest
from api_calls import Served, serving
from plan_requests import H100, slow_profile
from processes import Running, answers, own
from services import free_port
from sqlalchemy import select, update
from waiting import PATIENCE_S, wait_for

from tightship_analyzers.offload_planner import requests
from tightship_dashboard.pages.will_it_fit import SLOW_NS
from tightship_platform.database.engine import Database, open_database
from tightship_platform.database.models import PlanRequest
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import PlanState

MACHINE = {"gpu": H100, "memory": "20GiB", "host": "4096GiB", "cores": "1"}


def test_the_server_loads_nothing_of_the_planner(modules_of_the_server: set[str]) -> None:
    """Neither the search nor the reader of traces nor torch: a worker has them."""
    light = {"tightship_analyzers.offload_planner" + one for one in ("", ".request", ".requests", ".sources")}
    heavy = ("torch", "tightship_offload", "tightship_analyzers.trace", "tightship_analyzers.offload_planner")
    assert {one for one in modules_of_the_server if one.startswith(heavy)} <= light


@dataclass
class Page:
    """The page of plans as a browser on one server has it, without the browser."""

    url: str
    environ: dict[str, str]
    """Of its server."""

    def _call(self, output: str, inputs: dict[str, Any], state: dict[str, Any]) -> Any:
        names = output.strip(".").split("...")
        body = {
            "output": output,
            "outputs": [dict(zip(("id", "property"), name.split("."), strict=True)) for name in names],
            "inputs": [_value(name, value) for name, value in inputs.items()],
            "state": [_value(name, value) for name, value in state.items()],
            "changedPropIds": list(inputs),
        }
        answer = httpx.post(
            f"{self.url}/_dash-update-component",
            json=body,
            auth=own(self.environ),
            trust_env=False,
            timeout=PATIENCE_S,
        ).raise_for_status()
        return answer.json()["response"]

    def request(self, profile: str, **fields: str) -> str:
        """Press *Plan this profile*; the key of the request."""
        address = f"{self.url}/_dash-dependencies"
        listed = httpx.get(address, auth=own(self.environ), trust_env=False, timeout=PATIENCE_S).json()
        [button] = [one["output"] for one in listed if one["inputs"][0]["id"] == "fit-plan-profile"]
        given = {f"fit-{name}.value": fields.get(name) for name in ("gpu", "memory", "host", "cores")}
        found = self._call(button, {"fit-plan-profile.n_clicks": 1}, {"fit-profile.value": profile} | given)
        key: str = next(part for part in found.values() if "data" in part)["data"]["key"]
        return key

    def shown(self, key: str) -> str:
        """What the page shows of a request, as text."""
        output = "..fit-head.children...fit-result.children...fit-clock.disabled...fit-seen.data.."
        inputs = {"fit-request.data": {"key": key, "workflow": None}, "fit-clock.n_intervals": 1}
        return str(self._call(output, inputs, {"fit-seen.data": None}))


def _value(name: str, value: Any) -> dict[str, Any]:
    at, _, prop = name.rpartition(".")
    return {"id": at, "property": prop, "value": value}


def row(database: Database) -> PlanRequest:
    with database.session() as session:
        return session.scalars(select(PlanRequest)).one()


def kill(running: Running) -> None:
    """With SIGKILL: the process, and what follows it."""
    family = running.family()
    running.process.kill()
    _, alive = psutil.wait_procs(family, timeout=PATIENCE_S)
    assert alive == []


@pytest.mark.timeout(400)
def test_the_page_shows_the_plan_although_server_and_worker_were_killed_over_it(make_platform_env: Any) -> None:
    env = make_platform_env()
    ports, profile = (free_port(), free_port()), slow_profile(40)
    first, second = (Page(f"http://127.0.0.1:{port}", env.environ) for port in ports)
    with ExitStack() as stack, open_database(env.settings) as database:

        def start(*arguments: object) -> Running:
            return stack.enter_context(Running(env.environ, *map(str, arguments)))

        server = start("server", "--port", ports[0])
        stack.enter_context(serving(env.settings, port=ports[1]))
        worker = start("worker", "--beat", "--concurrency", 1)
        wait_for(lambda: answers(first.url) and answers(second.url), "both servers")
        key = first.request(profile, **MACHINE)
        wait_for(lambda: row(database).stage == "trying windows", "the search to begin")
        assert row(database).key == key
        assert server.family()[1:] == [], "no child of the server plans"
        assert "Planning: trying windows" in second.shown(key)

        kill(server)
        kill(worker)
        assert row(database).state == PlanState.PLANNING, "both died over it, without a word"
        stack.enter_context(serving(env.settings, port=ports[0]))
        assert "Planning: " in first.shown(key)
        with database.session() as session:  # as if the time of a lease had passed
            session.execute(update(PlanRequest).values(renewed_ns=now_ns() - requests.LEASE_NS))
        start("worker", "--beat", "--concurrency", 1)
        wait_for(lambda: row(database).attempts == 2, "another worker to begin it")
        wait_for(lambda: row(database).state == PlanState.PLANNED, "its plan", timeout_s=200)
        for page in (first, second):
            shown = page.shown(key)
            assert "Slow " in shown
            assert "trains in a window of " in shown
            assert "Download plan.yaml" in shown
        assert second.request(profile, **MACHINE) == key, "loaded again, the page finds it"
        assert row(database).attempts == 2


@pytest.fixture
def served(make_platform_env: Any) -> Iterator[Served]:
    with serving(make_platform_env().settings) as server:
        yield server


def test_each_state_of_a_request_is_said(served: Served) -> None:
    page = Page(served.url, {"TIGHTSHIP_HOME": str(served.settings.home)})
    assert "This plan is no longer kept." in page.shown("nope")
    key = page.request("version: 7", **MACHINE)
    assert "Planning: waiting for a worker" in page.shown(key)
    with served.database.session() as session:
        session.execute(update(PlanRequest).values(created_ns=now_ns() - SLOW_NS - 1))
    assert "tightship worker" in page.shown(key)
    with served.database.session() as session:
        claim = requests.begin(session, key)
        assert claim is not None
        assert requests.refuse(session, claim, "its version is 7; this release reads version 1")
    assert "This profile cannot be planned: its version is 7; this release reads version 1." in page.shown(key)
    with served.database.session() as session:
        session.execute(update(PlanRequest).values(state=PlanState.PLANNED.value, answer=b"cut short"))
    assert "The stored plan cannot be read" in page.shown(key)
    assert "Load the page again" in page.shown(key)
    assert page.request("version: 7", **MACHINE) == key
    assert "Planning: waiting for a worker" in page.shown(key)
