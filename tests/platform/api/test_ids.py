"""Ids by their beginning and `@`, as API and commands take them: one line when they mean several, nothing of others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from api_calls import Capture, Served, ok, refused, run_record, serving, trace_file
from processes import tightship

from tightship_platform.api.auth import create_token
from tightship_platform.database.models import Finding, Run
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import Scope

ADMIN = "admin-token-of-tests"
RED, OTHER_RED, BLUE = "ab10" + "0" * 12, "ab20" + "0" * 12, "ab30" + "0" * 12


@dataclass
class Fleet:
    served: Served
    red: httpx.Client
    blue: httpx.Client
    environ: dict[str, str]
    capture: str
    """Of RED, with its trace."""
    trace: int

    def tightship(self, *arguments: str, **kwargs: Any) -> Any:
        """A command of the red team."""
        return tightship(self.environ, *arguments, **kwargs)


@pytest.fixture(scope="module")
def fleet(make_platform_env: Callable[..., Any]) -> Iterator[Fleet]:
    """Two runs of one team, the second newer, and one of another; none is changed by a test."""
    env = make_platform_env()
    with serving(replace(env.settings, token=ADMIN)) as served:
        scopes = [Scope.INGEST, Scope.READ, Scope.CAPTURE, Scope.DELETE]
        with served.database.session() as session:
            red, blue = (create_token(session, team, scopes, team=team) for team in ("red", "blue"))
        environ = env.environ | {"TIGHTSHIP_SERVER": served.url, "TIGHTSHIP_TOKEN": red}
        with served.http(red) as of_red, served.http(blue) as of_blue:
            capture = Capture(of_red, run=RED)
            capture.write()
            trace = ok(capture.put(trace_file()))["trace"]
            later = now_ns() - NS_PER_S
            ok(of_red.post("/runs", json=run_record(OTHER_RED, start_ns=later)))
            ok(of_blue.post("/runs", json=run_record(BLUE, start_ns=later, host="node-2")))
            with served.database.session() as session:
                run = session.query(Run).where(Run.key == RED).one()
                finding = Finding(
                    rule="r", run_id=run.id, trace_id=trace, title="t", place="", fix="f", unit="ns", evidence=[],
                    method="bound", created_ns=1, value=1, low=1, high=1,
                )  # fmt: skip
                session.add(finding)
            yield Fleet(served, of_red, of_blue, environ, capture.key, trace)


def test_every_route_that_reads_one_thing_takes_its_beginning(fleet: Fleet) -> None:
    http, short = fleet.red, fleet.capture[:9]
    assert ok(http.get("/runs/ab1"))["run"] == RED
    assert ok(http.get("/runs/ab1/timeline"))["run"] == RED
    assert ok(http.get("/runs?after=ab2"))[0]["run"] == RED
    assert [one["capture"] for one in ok(http.get("/captures?run=ab1"))] == [fleet.capture]
    assert len(ok(http.get("/findings?run=ab1"))) == 1
    assert ok(http.get("/findings?run=ab2")) == []
    assert ok(http.get(f"/captures/{short}"))["capture"] == fleet.capture
    assert ok(http.get(f"/captures?after={short}")) == []
    refused(http.get(f"/captures/{short}/analysis"), 404, f"analysis of capture named '{fleet.capture}'")
    refused(http.post(f"/captures/{short}/analysis"), 409, fleet.capture)


def test_newest(fleet: Fleet) -> None:
    http = fleet.red
    assert ok(http.get("/runs/@"))["run"] == OTHER_RED
    assert ok(fleet.blue.get("/runs/@"))["run"] == BLUE
    assert ok(http.get("/captures/@"))["capture"] == fleet.capture
    assert ok(http.get("/findings/@"))["rule"] == "r"
    assert http.get("/traces/@/file").content == http.get(f"/traces/{fleet.trace}/file").content
    for path in ("/captures/@", "/findings/@", "/traces/@/file"):
        refused(fleet.blue.get(path), 404, "named '@'; there is none yet")


def test_what_means_several_is_one_line(fleet: Fleet) -> None:
    several = f"The run id 'ab' is ambiguous: {OTHER_RED}, {RED}; give more of it"
    for path in ("/runs/ab", "/runs/ab/timeline", "/captures?run=ab", "/findings?run=ab", "/runs?after=ab"):
        assert refused(fleet.red.get(path), 409) == several
    assert refused(fleet.red.post("/captures", json={"target": "ab"}), 409) == several
    done = fleet.tightship("captures", "--run", "ab")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"tightship: {several}\n")
    done = fleet.tightship("profile", "ab")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"tightship: {several}\n")


def test_another_teams_is_not_found(fleet: Fleet) -> None:
    assert ok(fleet.blue.get("/runs/ab"))["run"] == BLUE, "those of others are not counted"
    for text in ("ab3", BLUE):
        refused(fleet.red.get(f"/runs/{text}"), 404, f"No run named '{text}'")
    refused(fleet.blue.get(f"/captures/{fleet.capture[:9]}"), 404)
    refused(fleet.blue.get(f"/traces/{fleet.trace}/file"), 404)


def test_a_number_is_whole(fleet: Fleet) -> None:
    refused(fleet.red.get("/findings/x"), 422, "'x'; expected a whole number, or @ for the newest")
    refused(fleet.red.get("/traces/1x/file"), 422, "whole number")
    refused(fleet.red.get("/findings/999"), 404, "999")


def test_commands_take_them_too(fleet: Fleet) -> None:
    (listed,) = json.loads(fleet.tightship("captures", "--run", "ab1", "--json").stdout)
    assert listed["capture"] == fleet.capture
    assert json.loads(fleet.tightship("findings", "--run", "@", "--json").stdout) == []


def test_only_a_whole_id_is_deleted(fleet: Fleet) -> None:
    for text in ("ab2", "@"):
        refused(fleet.red.delete(f"/runs/{text}"), 404, text)
        done = fleet.tightship("runs", "delete", text, "--yes")
        assert (done.returncode, done.stdout) == (2, "")
    asked = fleet.tightship("runs", "delete", "ab2", input="n\n")
    assert asked.returncode == 1
    assert asked.stdout.startswith(f"Delete run {OTHER_RED} with its traces?")
    refused(fleet.red.delete(f"/runs/{OTHER_RED}"), 409, "running")
