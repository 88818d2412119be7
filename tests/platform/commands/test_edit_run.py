"""`tightship runs rename` and `tightship runs label` against a server: who may, what is written down, what is shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from api_calls import Served, ok, refused, run_record
from click.testing import CliRunner, Result

from tightship_platform.api.auth import create_token
from tightship_platform.cli import root
from tightship_platform.client import ApiError
from tightship_platform.errors import TightshipError
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import Scope

ADMIN = "admin-token-of-tests"
OLD, NEW, OTHER = "f00d" + "a" * 12, "f11e" + "b" * 12, "b10e" + "c" * 12
HOSTILE = "[red]<b onclick=x>"


@dataclass
class Deployment:
    """A server with two runs of one team and one of another."""

    admin: httpx.Client
    red: httpx.Client
    reader: httpx.Client
    call: Callable[..., Result]


@pytest.fixture
def deployed(platform_env: Any, serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    served = serve(replace(platform_env.settings, token=ADMIN))
    for name, value in {"TIGHTSHIP_SERVER": served.url, "TIGHTSHIP_TOKEN": ADMIN, "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    with served.database.session() as session:
        scopes = [Scope.INGEST, Scope.READ, Scope.APPLY]
        of_red, of_blue = (create_token(session, team, scopes, team=team, user=f"u-{team}") for team in ("red", "blue"))
        of_reader = create_token(session, "reader", [Scope.READ, Scope.CAPTURE, Scope.DELETE, Scope.INGEST])
    with served.http(ADMIN) as admin, served.http(of_red) as red, served.http(of_reader) as reader:
        for at, run in enumerate((OLD, NEW)):
            ok(red.post("/runs", json=record(run, at)))
        with served.http(of_blue) as blue:
            ok(blue.post("/runs", json=record(OTHER, 2) | {"host": "node-2"}))
        yield Deployment(admin, red, reader, lambda *arguments: CliRunner().invoke(root, arguments))


def record(run: str, at: int) -> dict[str, Any]:
    return run_record(run, start_ns=now_ns() - (10 - at) * NS_PER_S, labels={"lr": "3e-4"})


def test_a_run_is_renamed_and_labelled(deployed: Deployment) -> None:
    done = deployed.call("runs", "rename", "f00d", f"best {HOSTILE}")
    assert (done.exit_code, done.stdout) == (0, f"Run {OLD} is called 'best {HOSTILE}'.\n")
    done = deployed.call("runs", "label", "f00d", f"status={HOSTILE}", "lr=1=2", "--json")
    assert json.loads(done.stdout)["labels"] == {"lr": "1=2", "status": HOSTILE}
    ok(deployed.red.post("/runs", json=record(OLD, 0) | {"labels": {"lr": "3e-4", "epoch": "9"}}))
    shown = deployed.call("show", "f00d").stdout
    assert shown.startswith(f"vision, run {OLD} (best {HOSTILE}): ")
    assert f"epoch=9, lr=1=2, status={HOSTILE}" in " ".join(shown.split())
    assert f"best {HOSTILE}" in deployed.call("runs", "--label", "lr=1=2").stdout
    assert json.loads(deployed.call("runs", "--search", "best", "--json").stdout)[0]["run"] == OLD
    assert "NAME" not in deployed.call("runs", "--label", "lr=3e-4").stdout, "no column where no run has a name"
    done = deployed.call("runs", "label", OLD, "--remove", "status", "--remove", "lr", "--remove", "epoch")
    assert done.stdout == f"Labels of run {OLD}: none.\n"
    assert deployed.call("runs", "rename", OLD, "").stdout == f"Run {OLD} has no name.\n"
    entries = ok(deployed.admin.get("/audit", params={"action": "run.edit"}))
    assert [(entry["actor"], entry["target"]) for entry in entries] == [("environment", OLD)] * 4
    assert json.loads(entries[-1]["detail"]) == {"name": f"best {HOSTILE}", "labels": {}}
    assert json.loads(deployed.call("runs", "label", "@", "seed=1", "--json").stdout)["run"] == OTHER


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rename", "nosuch", "x"), "No run named 'nosuch'"),
        (("rename", "f", "x"), f"The run id 'f' is ambiguous: {NEW}, {OLD}"),
        (("rename", OLD, "x" * 201), "Name is "),
        (("rename", OLD, "a\x1b[2Jb"), "Name is "),
        (("label", OLD), "Name a label: KEY=VALUE, or --remove KEY"),
        (("label", OLD, "lr"), "label is 'lr'; expected key=value"),
        (("label", OLD, "lr=1", "--remove", "lr"), "Label is 'lr'; expected each label once"),
        (("label", OLD, "=1"), "Label is ''"),
        (("label", OLD, f"a={'x' * 201}"), "Label a is "),
        (("label", OLD, "--remove", "nosuch"), f"expected one that run {OLD} has: lr"),
    ],
)
def test_bad_input_is_one_line(deployed: Deployment, arguments: tuple[str, ...], message: str) -> None:
    done = deployed.call("runs", *arguments)
    assert isinstance(done.exception, TightshipError) and done.stdout == ""
    assert message in str(done.exception) and "\n" not in str(done.exception)
    assert ok(deployed.red.get(f"/runs/{OLD}"))["labels"] == {"lr": "3e-4"}


def test_who_may(deployed: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(deployed.reader.patch(f"/runs/{OLD}", json={"name": "x"}), 403, "apply")
    refused(deployed.red.patch(f"/runs/{OTHER}", json={"name": "x"}), 404, OTHER)
    refused(deployed.red.patch("/runs/b", json={"name": "x"}), 404, "b")
    assert ok(deployed.red.patch("/runs/f11", json={"name": "ours"}))["name"] == "ours"
    for body in ({"name": 1}, {"labels": {"a": 1}}, {"labels": ["a"]}, {"labels": {"a": "b\u0000"}}, {}):
        refused(deployed.red.patch(f"/runs/{OLD}", json=body), 422)
    assert [one["name"] for one in ok(deployed.admin.get("/runs"))] == [None, "ours", None]
    monkeypatch.setenv("TIGHTSHIP_TOKEN", "a-token-of-nobody-at-all")
    error = deployed.call("runs", "rename", OLD, "x").exception
    assert isinstance(error, ApiError) and error.http_status == 401
