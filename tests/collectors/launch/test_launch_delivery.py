"""Records of runs reach a real server: at once, or later when it was away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_rig import Rig, stop
from api_calls import serving
from launching import launch, spooled, start, warnings_in
from waiting import wait_for

from tightship_collectors.launch import delivery
from tightship_collectors.launch.delivery import Delivery
from tightship_platform.api.auth import Scope, create_token
from tightship_platform.database.engine import open_database
from tightship_platform.results.run_record import RunRecord
from tightship_platform.settings import load_settings


@pytest.fixture(scope="module")
def shared(make_platform_env: Callable[..., Any]) -> Iterator[Rig]:
    made = Rig(variables=make_platform_env().variables)
    yield made
    made.close()


@pytest.fixture
def served(shared: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A server for all tests that need no more of it; launchers have another home in each test."""
    if shared.get("/health") is None:
        shared.start_server()
    monkeypatch.setenv("TIGHTSHIP_SERVER", shared.environ["TIGHTSHIP_SERVER"])
    monkeypatch.setenv("TIGHTSHIP_TOKEN", (Path(shared.environ["TIGHTSHIP_HOME"]) / "token").read_text().strip())
    return shared


@pytest.fixture
def rig(make_platform_env: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """An installation of which nothing runs yet."""
    made = Rig(variables=make_platform_env().variables)
    for name, value in made.environ.items():
        if name.startswith("TIGHTSHIP_"):
            monkeypatch.setenv(name, value)
    yield made
    made.close()


UNTIL_SENT = 'while [ -n "$(ls "$TIGHTSHIP_HOME/spool/runs")" ]; do sleep 0.05; done'
"""A job that lasts until nothing of earlier runs waits any more."""


def run_of(rig: Rig, workflow: str) -> dict[str, Any] | None:
    runs = rig.get(f"/runs?workflow={workflow}") or []
    return rig.get(f"/runs/{runs[0]['run']}") if runs else None


def test_a_run_is_seen_from_its_start_to_its_end(served: Rig) -> None:
    options = ("--workflow", "seen", "--team", "vision", "--owner", "ada", "--label", "a=1", "--label", "b=<b>")
    job = start("sh", "-c", "read x; exit 7", options=options, stdin=subprocess.PIPE)
    run = wait_for(lambda: run_of(served, "seen"))
    assert (run["state"], run["team"], run["owner"], run["exit_code"], run["end_ns"]) == (
        "running",
        "vision",
        "ada",
        None,
        None,
    )
    assert run["labels"] == {"a": "1", "b": "<b>"} and run["command"] == ["sh", "-c", "read x; exit 7"]
    out, errors = job.communicate("\n")
    assert (job.returncode, out, errors) == (7, "", "")
    run = run_of(served, "seen")
    assert run is not None
    assert (run["state"], run["exit_code"]) == ("failed", 7)
    assert run["start_ns"] < run["end_ns"]
    assert spooled() == {}


def test_what_a_job_is_launched_with_is_known_while_it_runs(served: Rig, tmp_path: Path) -> None:
    """What git says comes later, in another record."""
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path))
    (tmp_path / "train.py").write_text("print(1)")
    for command in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "one")):
        subprocess.run([*git, *command], check=True)
    (tmp_path / "train.py").write_text("print(2)")
    job = start("sh", "-c", "read x", options=("--workflow", "of a tree"), stdin=subprocess.PIPE, cwd=tmp_path)
    run = wait_for(lambda: (found := run_of(served, "of a tree")) and found["git_dirty"] is not None and found)
    assert (run["state"], run["git_dirty"]) == ("running", True)
    assert (
        run["git_commit"] == subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    )
    job.communicate("\n")
    assert run_of(served, "of a tree")["git_dirty"] is True  # type: ignore[index]


def test_a_very_short_run_is_seen_too(served: Rig) -> None:
    done = launch("true", options=("--workflow", "short"))
    assert (done.returncode, done.stderr) == (0, "")
    run = run_of(served, "short")
    assert run is not None and (run["state"], run["exit_code"]) == ("finished", 0)
    assert spooled() == {}


def test_a_server_that_goes_away_gets_the_end_from_the_next_run(served: Rig) -> None:
    job = start("sh", "-c", "read x; exit 7", options=("--workflow", "left"), stdin=subprocess.PIPE)
    key = wait_for(lambda: run_of(served, "left"))["run"]
    stop(served.children[-1])
    _, errors = job.communicate("\n")
    assert job.returncode == 7
    assert len(warnings_in(errors)) == len(errors.splitlines()) == 1
    assert list(spooled()) == [f"{key}.json"]
    served.start_server()
    assert served.get(f"/runs/{key}")["state"] == "running"
    done = launch("sh", "-c", UNTIL_SENT, options=("--workflow", "next"))
    assert (done.returncode, done.stderr) == (0, "")
    assert spooled() == {}
    run = served.get(f"/runs/{key}")
    assert (run["state"], run["exit_code"]) == ("failed", 7)


def test_a_server_that_falls_silent_is_reported(served: Rig) -> None:
    server = served.children[-1]
    said: list[str] = []
    sender = Delivery(load_settings(), said.append)
    record = RunRecord(run="5" * 16, workflow="silent", start_ns=1_700_000_000_000_000_000, host="h")
    sender.start(record)
    wait_for(lambda: run_of(served, "silent"))
    server.send_signal(signal.SIGSTOP)
    try:
        sender.finish(replace(record, end_ns=record.start_ns + 1, exit_code=0))
    finally:
        server.send_signal(signal.SIGCONT)
    [line] = said
    # It may also have been within the announcement's last breath; what it says is never nothing.
    assert not line.startswith(";") and line.endswith("is sent later")
    assert list(spooled()) == [f"{record.run}.json"]


def test_a_server_that_comes_late_hears_from_the_agent(rig: Rig) -> None:
    job = start("sh", "-c", "read x; exit 0", options=("--workflow", "early"), stdin=subprocess.PIPE)
    (name,) = wait_for(spooled)
    assert name.endswith(".start.json")
    with serving(load_settings(), port=rig.port):
        rig.start_agent()
        run = wait_for(lambda: run_of(rig, "early"))
        assert run["state"] == "running"
        _, errors = job.communicate("\n")
        assert job.returncode == 0 and len(warnings_in(errors)) == 1
        run = wait_for(lambda: (r := run_of(rig, "early")) and r["state"] != "running" and r)
        assert run["exit_code"] == 0
        wait_for(lambda: not spooled())


def test_a_token_that_is_refused_costs_one_line(rig: Rig) -> None:
    with open_database(load_settings()) as database, database.session() as session:
        create_token(session, "somebody", [Scope.INGEST])
    with serving(load_settings(), port=rig.port):
        done = launch("sh", "-c", "exit 3", extra_env={"TIGHTSHIP_TOKEN": "wrong"})
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert "token" in line and "sent later" in line
    assert len(spooled()) == 1


def test_what_the_server_refuses_does_not_hold_up_the_rest(served: Rig) -> None:
    folder = Path(os.environ["TIGHTSHIP_HOME"]) / "spool" / "runs"
    folder.mkdir(parents=True)
    (folder / "0000000000000000.json").write_text(json.dumps({"run": "../x", "workflow": "w"}))
    (folder / "1111111111111111.json").write_text("{ not json")
    os.mkfifo(folder / "2222222222222222.json")
    (folder / "3333333333333333.json").symlink_to("/etc/passwd")
    good = RunRecord(run="4" * 16, workflow="old", start_ns=1_700_000_000_000_000_000, host="h")
    (folder / "4444444444444444.json").write_text(json.dumps(vars(good)))
    done = launch("sh", "-c", f"while [ -e {folder}/4*.json ]; do sleep 0.05; done", options=("--workflow", "now"))
    assert (done.returncode, done.stderr) == (0, "")
    assert run_of(served, "old") is not None
    assert sorted(p.name[0] for p in folder.iterdir()) == ["0", "1", "2", "3"]


def test_only_so_many_old_records_are_sent_in_passing(served: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "MAX_OLD_RECORDS", 3)
    folder = Path(os.environ["TIGHTSHIP_HOME"]) / "spool" / "runs"
    folder.mkdir(parents=True)
    for number in range(5):
        record = RunRecord(run=f"{number:016x}", workflow="older", start_ns=1_700_000_000_000_000_000, host="h")
        (folder / f"{number:016x}.json").write_text(json.dumps(vars(record)))
    said: list[str] = []
    sender = Delivery(load_settings(), said.append)
    sender.start(RunRecord(run="f" * 16, workflow="new", start_ns=1_700_000_000_000_000_000, host="h"))
    wait_for(lambda: len(list(folder.iterdir())) == 2)
    sender.finish(
        RunRecord(
            run="f" * 16,
            workflow="new",
            start_ns=1_700_000_000_000_000_000,
            host="h",
            end_ns=1_700_000_000_000_000_001,
            exit_code=0,
        )
    )
    assert said == []
    assert run_of(served, "new")["state"] == "finished"  # type: ignore[index]
