"""How lists leave a command: tables that fit a terminal, JSON, CSV, colours of states, and lists that are watched."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from api_calls import Capture, Served, heartbeat, ok, run_record, serving
from click.testing import CliRunner, Result
from rich.cells import cell_len
from sqlalchemy import select
from waiting import wait_for

from tightship_platform.cli import root
from tightship_platform.commands.list_form import as_csv
from tightship_platform.database import models
from tightship_platform.errors import TightshipError
from tightship_platform.results.host import Device
from tightship_platform.units import NS_PER_S, now_ns

WHY = "NotImplementedError: the operator aten::_grouped_mm is not implemented for this device; see the table"
FILTERED = ("runs", "captures", "findings", "hosts", "workflows")
OWN = (*FILTERED, "opportunities")
LOCAL = (("audit",), ("token", "list"), ("token", "teams"), ("token", "sessions"))
ESCAPES = re.compile(r"\x1b\[[\d;]*m")


@pytest.fixture(scope="module")
def environment(make_platform_env: Callable[..., Any]) -> Iterator[dict[str, str]]:
    """Of a client of a server with a run that failed, one that lives, captures, findings and opportunities."""
    env = make_platform_env()
    with serving(env.settings) as served:
        fill(served)
        yield env.variables | {"TIGHTSHIP_SERVER": served.url}


def fill(served: Served) -> None:
    start, more = now_ns() - 4000 * NS_PER_S, {"owner": "a" * 40, "user": "ann", "labels": {"lr": "3e-4"}}
    name = "pretraining-of-a-vision-language-model-with-a-long-name"
    with served.http() as http:
        record = run_record("f" * 16, workflow=name, team="t" * 30, start_ns=start, **more)
        ok(http.post("/runs", json=record))
        ok(http.post("/hosts/heartbeat", json=heartbeat("f" * 16)))
        ok(http.post("/captures", json={"target": "f" * 16}))
        ok(http.post("/runs", json=record | {"end_ns": start + 3725 * NS_PER_S, "exit_code": 137, "error": WHY}))
        Capture(http, run="a" * 16, workflow="=cmd|' /C calc'!A0")
    with served.database.session() as session:
        for capture in session.scalars(select(models.Capture).where(models.Capture.state == "failed")):
            capture.reason = WHY
        for run in session.scalars(select(models.Run)):
            finding = models.Finding(
                rule="conv-bias-before-batch-norm", run_id=run.id, title="t", place="src/models/backbone.py:[1234]",
                fix=WHY,
                unit="ns/step", share_frac=0.25, evidence=[], created_ns=now_ns(), value=5_000_000, low=4_000_000,
                high=6_000_000, method="simulated",
            )  # fmt: skip
            opportunity = models.Opportunity(
                workflow_id=run.workflow_id, key="k", title="t", rules=["conv-bias-before-batch-norm", "starved-input"],
                findings=[1], fix=WHY, device_ns=10**15, position=run.id, updated_ns=1, method="simulated",
                value=10**14, low=10**13, high=2 * 10**14, state="applied",
            )  # fmt: skip
            session.add_all([finding, opportunity])


@pytest.fixture
def call(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command against the server, here."""
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str, **variables: str) -> Result:
        return CliRunner(env=variables).invoke(root, arguments)

    return run


def output(result: Result) -> str:
    assert result.exit_code == 0, result.exception
    return str(result.stdout)


# ---- tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 100, 200])
@pytest.mark.parametrize("name", OWN)
def test_a_table_fits_its_terminal_and_hides_neither_state_nor_reason(
    call: Callable[..., Result], name: str, columns: int
) -> None:
    shown = ESCAPES.sub("", output(call(name, FORCE_COLOR="1", COLUMNS=str(columns))))
    lines = shown.splitlines()
    assert max(map(cell_len, lines)) <= columns
    text = " ".join(shown.split())
    states = {
        "runs": ("failed (137)", "running"), "captures": ("failed", "requested"), "hosts": ("alive",),
        "opportunities": ("applied",),
    }  # fmt: skip
    assert all(state in text for state in states.get(name, ()))
    if name in ("runs", "captures", "findings", "opportunities"):
        assert WHY in text
    if name == "findings":
        assert {"ID", "RULE", "SAVES", "METHOD"} <= set(lines[0].split())
        assert "5.00 ms/step" in text and "simulated" in text
        assert columns < 200 or ("4.00 ms – 6.00 ms" in text and "LOW–HIGH" in lines[0])


def test_elsewhere_each_item_is_one_whole_line(call: Callable[..., Result]) -> None:
    for name in OWN:
        _head, line, *rest = [line for line in output(call(name, COLUMNS="80")).splitlines() if set(line) - set(" ─")]
        assert len(rest) <= 1 and "…" not in line
    assert WHY in output(call("runs", "--state", "failed")).splitlines()[-1]


def test_only_a_terminal_sees_the_colours_of_states(call: Callable[..., Result]) -> None:
    coloured = output(call("runs", FORCE_COLOR="1", COLUMNS="120"))
    assert "\x1b[31mfailed (137)" in coloured and "\x1b[36mrunning" in coloured
    assert "\x1b[32malive" in output(call("hosts", FORCE_COLOR="1"))
    colours = re.compile(r"\x1b\[[\d;]*3\d")
    forced = {"FORCE_COLOR": "1"}
    for variables in ({}, {"NO_COLOR": "1"}, forced | {"NO_COLOR": "1"}, forced | {"TERM": "dumb"}):
        for name in OWN:
            assert not colours.search(output(call(name, **variables))), variables
    assert "\x1b" not in "".join(output(call(*name)) for name in (("runs",), *LOCAL))


def test_times_are_local_with_their_offset_and_durations_of_one_style(
    call: Callable[..., Result], environment: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "tightship_platform.cli", "runs", "--state", "failed"]
    environ = os.environ | environment | {"TZ": "Asia/Kolkata"}
    shown = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \+05:30 +1 h 2 min ", shown)


# ---- JSON and CSV ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [(name,) for name in OWN] + list(LOCAL), ids=" ".join)
def test_csv_has_the_keys_of_json(call: Callable[..., Result], name: tuple[str, ...]) -> None:
    listed = json.loads(output(call(*name, "--json")))
    assert json.loads(output(call(*name, "--format", "json"))) == listed
    head, *rows = csv.reader(io.StringIO(output(call(*name, "--format", "csv"))))
    assert len(rows) == len(listed)
    assert not listed or list(listed[0]) == head
    for row, item in zip(rows, listed, strict=True):
        for text, value in zip(row, item.values(), strict=True):
            expected = value.lstrip("=") if isinstance(value, str) else value
            read = text.lstrip("'=") if isinstance(value, str) else json.loads(text) if text else None
            assert read == expected


def test_a_spreadsheet_computes_nothing_and_a_terminal_is_not_steered() -> None:
    names = ["=1+1", "+1", "-1", "@SUM(A1)", "a\nb", "\x1b[31m", 'a,"b"', "", "é"]
    devices = [Device(host=name, uuid="u", kind="gpu", name="n") for name in names]
    shown = as_csv(["host", "kind"], devices)
    assert not set(shown) & {"\x1b", "\r"}
    rows = [row[0] for row in csv.reader(io.StringIO(shown))]
    assert rows == ["host", "'=1+1", "'+1", "'-1", "'@SUM(A1)", r"a\nb", r"\x1b[31m", 'a,"b"', "", "é"]


def test_evidence_can_be_left_out(call: Callable[..., Result]) -> None:
    whole, brief = (json.loads(output(call("findings", "--json", *more))) for more in ((), ("--brief",)))
    assert [{key: value for key, value in item.items() if key != "evidence"} for item in whole] == brief != whole
    head = output(call("findings", "--format", "csv", "--brief")).splitlines()[0]
    assert "evidence" not in head and "saving" in head


def test_exit_codes_are_alike(call: Callable[..., Result]) -> None:
    """An empty list is none the less a list; what cannot be is refused."""
    for name in [(name,) for name in FILTERED]:
        assert output(call(*name, "--workflow", "nosuch"))
        assert output(call(*name, "--workflow", "nosuch", "--json")) == "[]\n"
        assert len(output(call(*name, "--workflow", "nosuch", "--format", "csv")).splitlines()) == 1
    for name in [(name,) for name in OWN] + list(LOCAL):
        for wrong in (("--format", "xml"), ("--json", "--format", "csv"), ("--watch", "--json"), ("--watch",)):
            result = call(*name, *wrong)
            assert isinstance(result.exception, TightshipError) and result.exception.exit_code == 2
            assert result.stdout == "" and len(str(result.exception).splitlines()) == 1


# ---- watching --------------------------------------------------------------------------------------------------------


def test_a_watched_list_shows_what_changes_until_ctrl_c(environment: dict[str, str]) -> None:
    terminal, slave = pty.openpty()
    command = [sys.executable, "-m", "tightship_platform.cli", "runs", "--watch", "--workflow", "watched"]
    environ = os.environ | environment | {"COLUMNS": "100", "LINES": "12", "TERM": "xterm"}
    drawn = bytearray()

    def shows(text: str) -> bool:
        os.set_blocking(terminal, False)
        with contextlib.suppress(BlockingIOError):
            drawn.extend(os.read(terminal, 65536))
        return text.encode() in drawn

    from tightship_platform.client import ApiClient
    from tightship_platform.settings import load_settings

    record = run_record("c" * 16, workflow="watched")
    watching = subprocess.Popen(command, env=environ, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    try:
        wait_for(lambda: shows("Nothing matches. See all of them with: tightship runs"))
        with ApiClient(load_settings(os.environ | environment)) as api:
            api.post("/runs", record)
            wait_for(lambda: shows("running"))
            api.post("/runs", record | {"end_ns": record["start_ns"] + 1, "exit_code": 3})
        wait_for(lambda: shows("failed (3)"))
        assert drawn.count(b"\x1b[H\x1b[J") >= 3
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 0
        assert not shows("Traceback") and not shows("Aborted")
    finally:
        watching.kill()
        watching.wait()
        os.close(terminal)
        os.close(slave)


def test_a_server_that_is_away_is_not_watched(environment: dict[str, str]) -> None:
    terminal, slave = pty.openpty()
    environ = os.environ | environment | {"TIGHTSHIP_SERVER": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "tightship_platform.cli", "hosts", "--watch"]
    done = subprocess.run(command, env=environ, stdout=slave, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(terminal)
    os.close(slave)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "tightship up" in done.stderr
