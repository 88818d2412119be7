"""`tightship show` and `tightship open`: one run on one screen, and the addresses of pages."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from api_calls import Capture as CaptureCalls
from api_calls import Served, ok, run_record, serving, trace_file
from click.testing import CliRunner, Result
from processes import tightship
from sqlalchemy import select

from tightship_platform.cli import root
from tightship_platform.client import ApiError
from tightship_platform.commands.open_page import KINDS
from tightship_platform.database.models import Allocation, Capture, Finding, Run, RunAccount, Trace
from tightship_platform.errors import Invalid
from tightship_platform.queries.named import KINDS as SERVED_KINDS
from tightship_platform.results.codec import decode
from tightship_platform.results.run_report import RunReport
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import CaptureState

ADMIN = "admin-token-of-tests"
FAILED, YOUNG = "f00d" + "a" * 12, "f11e" + "b" * 12
FINDINGS = 7
HOSTILE = "a\x1b]0;owned\x07 [red]<b>"


@dataclass
class Filled:
    served: Served
    variables: dict[str, str]
    capture: str
    findings: list[int]
    trace: int


@pytest.fixture(scope="module")
def filled(make_platform_env: Callable[..., Any]) -> Iterator[Filled]:
    """A run that failed, with an account, seven findings and two captures, and one that has just begun."""
    env = make_platform_env()
    with serving(replace(env.settings, token=ADMIN)) as served, served.http(ADMIN) as http:
        start_ns = now_ns() - 600 * NS_PER_S
        calls = CaptureCalls(http, run=FAILED, pids={0: 100, 1: 101})
        record = run_record(
            FAILED, start_ns=start_ns, command=["python", "train.py", *["--layers=48"] * 20], labels={"lr": "3e-4"},
            user="ann", external_id="4711", git_commit="ab" * 20, git_dirty=True, torch_version="2.9.0",
            cuda_version="12.8",
        )  # fmt: skip
        ok(http.post("/runs", json=record))
        calls.write()
        traces = [ok(calls.put(trace_file(), rank))["trace"] for rank in (0, 1)]
        later = ok(http.post("/captures", json={"target": FAILED}))["capture"]
        end = {"end_ns": start_ns + 90 * NS_PER_S, "exit_code": 1, "error": "ValueError: expected 3 channels, got 1"}
        ok(http.post("/runs", json=record | end))
        ok(http.post("/runs", json=run_record(YOUNG, workflow=HOSTILE[:1] + "[red]<b>", start_ns=now_ns() - NS_PER_S)))
        with served.database.session() as session:
            run = session.scalars(select(Run).where(Run.key == FAILED)).one()
            run.steps, run.accounted_ns = 1200, now_ns()
            [held] = session.scalars(select(Allocation).where(Allocation.run_id == run.id))
            held.end_ns = held.start_ns + 100 * NS_PER_S
            for bucket, share in (("productive", 75), ("input", 20), ("unexplained", 5)):
                session.add(RunAccount(run_id=run.id, bucket=bucket, device_ns=share * NS_PER_S))
            first = session.scalars(select(Capture).where(Capture.key == calls.key)).one()
            first.state = CaptureState.ANALYZED.value
            trace = session.scalars(select(Trace).where(Trace.id == traces[1])).one()
            rows = [
                Finding(
                    rule="starved-input", run_id=run.id, trace_id=trace.id, title="The GPU waits for the next batch",
                    place=f"train.py:{number}", fix="Give the loader workers", unit="ns/step", evidence=[],
                    share_frac=0.25 - number / 100, created_ns=1, method="simulated",
                    value=5_000_000, low=4_000_000, high=6_000_000,
                )
                for number in range(FINDINGS)
            ]  # fmt: skip
            session.add_all(rows)
            session.flush()
            ids = [row.id for row in rows]
        variables = env.variables | {"TIGHTSHIP_SERVER": served.url, "TIGHTSHIP_TOKEN": ADMIN}
        assert later != calls.key
        yield Filled(served, variables, calls.key, ids, traces[1])


@pytest.fixture
def call(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command against the server; COLUMNS is 80."""
    for name, value in filled.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    return lambda *arguments: CliRunner().invoke(root, arguments)


def test_a_run_on_one_screen(call: Callable[..., Result], filled: Filled) -> None:
    shown = call("show", "f00d").stdout
    lines = shown.splitlines()
    assert lines[0] == f"vision, run {FAILED}: failed after 1.50 min"
    assert lines[1] == "  ended with exit code 1: ValueError: expected 3 channels, got 1."
    words = " ".join(shown.split())
    for part in (
        "by ann on node-1",
        "Team red",
        "Job 4711",
        "Steps 1,200",
        "Labels lr=3e-4",
        "Commit abababababab, with changes that are not in it",
        "Versions torch 2.9.0, CUDA 12.8",
        f"Page {filled.served.url}/runs/{FAILED}",
        "Device time 1.67 min: 75.0 % productive; largest loss: input, 20.0 %.",
        "productive 1.25 min 75.0 % input 20.0 s 20.0 % unexplained 5.00 s 5.0 %",
        f"{FINDINGS} findings: {filled.findings[0]} starved-input: 5.00 ms/step (4.00 ms to 6.00 ms, simulated), 25.",
        "The GPU waits for the next batch. rank 1, train.py:0 Give the loader workers",
        f"All {FINDINGS}: tightship findings --run {FAILED}",
        "2 captures:",
        "run ended.",
        f"{filled.capture} analyzed, 2 of 2 traces",
        f"{filled.served.url}/traces/{filled.capture}",
    ):
        assert part in words
    assert str(filled.findings[-1]) not in re.findall(r"\d+", words.partition("findings:")[2].partition("All ")[0])
    assert lines == [line.rstrip() for line in lines]
    assert max(map(len, lines)) <= 80, [line for line in lines if len(line) > 80]


def test_where_all_device_time_went_and_who_wasted_most(call: Callable[..., Result]) -> None:
    first, *table, goodput = call("account").stdout.splitlines()
    assert goodput.startswith("live: goodput unknown = scheduling unknown × runtime ")
    assert "1 run held 1.67 min of device time" in first
    assert [line.split()[0] for line in table[2:]] == ["red"]
    assert "25.0 s       75.0 %   20.0 % input" in table[2]
    assert call("account", "--by", "workflow", "--label", "lr=3e-4").stdout.splitlines()[3].split()[0] == "vision"
    assert call("account", "--label", "lr=1", "--format", "csv").stdout.splitlines() == [
        "key,runs,devices,device_ns,unproductive_ns,busy_ns,idle_ns,unmeasured_ns,buckets,"
        "waiting_ns,waiting_runs,goodput"
    ]
    before, none = call("account", "--since", "2d", "--until", "1d").stdout.splitlines()
    assert before.endswith("0 runs held 0 s of device time") and none.startswith("No run is accounted for then.")
    for by, key in (("team", "red"), ("fleet", "live"), ("workflow", "vision")):
        [group] = json.loads(call("account", "--by", by, "--json").stdout)
        assert (group["key"], group["buckets"]["input"]) == (key, 20 * NS_PER_S)
    refused = call("account", "--since", "2999-01-01").exception
    assert isinstance(refused, ApiError) and "Period" in str(refused)


def test_everything_as_json(call: Callable[..., Result], filled: Filled) -> None:
    printed = json.loads(call("show", FAILED, "--json").stdout)
    report = decode(RunReport, printed)
    assert (report.run.run, report.page) == (FAILED, f"{filled.served.url}/runs/{FAILED}")
    assert [one.finding for one in report.findings] == filled.findings
    assert len(report.captures) == 2


def test_a_run_of_which_nothing_is_known_yet(call: Callable[..., Result]) -> None:
    shown = call("show", "@").stdout
    words = " ".join(shown.split())
    assert shown.startswith(f"a[red]<b>, run {YOUNG}: running for ")
    assert "Devices none seen" in words
    assert "Its device time is not accounted for yet" in words
    assert "No finding, as no trace was analyzed." in words
    assert f"No capture; take one with: tightship profile {YOUNG} --wait" in words


def test_what_a_job_says_cannot_steer_the_terminal(call: Callable[..., Result], filled: Filled) -> None:
    with filled.served.database.session() as session:
        run = session.scalars(select(Run).where(Run.key == YOUNG)).one()
        run.reason, run.command, run.labels = HOSTILE, [HOSTILE], {HOSTILE: HOSTILE}
    shown = call("show", YOUNG).stdout
    assert r"a\x1b]0;owned\x07 [red]<b>" in shown
    assert not set(shown) & set("\x1b\x07")


def test_what_it_shows_of_no_run(call: Callable[..., Result]) -> None:
    for text in ("none", "", "../captures", "f?x=1", "a/b"):
        error = call("show", text).exception
        assert isinstance(error, ApiError)
        assert "No run named" in str(error)
    assert "ambiguous" in str(call("show", "f").exception)


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["@"], f"/runs/{YOUNG}"),
        (["f00"], f"/runs/{FAILED}"),
        (["run", "f00"], f"/runs/{FAILED}"),
        (["{capture}"], "/traces/{capture}"),
        (["capture", "{capture}"], "/traces/{capture}"),
        (["{finding}"], "/findings/{finding}"),
        (["finding", "{finding}"], "/findings/{finding}"),
        (["trace", "{trace}"], "/traces/{capture}?rank=1"),
        (["trace", "@"], "/traces/{capture}?rank=1"),
    ],
)
def test_the_address_of_each_page(call: Callable[..., Result], filled: Filled, words: list[str], path: str) -> None:
    names = {"capture": filled.capture, "finding": filled.findings[3], "trace": filled.trace}
    done = call("open", *(word.format(**names) for word in words))
    assert (done.exit_code, done.stdout) == (0, filled.served.url + path.format(**names) + "\n")
    with filled.served.pages(authorization=f"Bearer {ADMIN}") as browser:
        assert browser.get(path.format(**names)).status_code == 200


def test_a_browser_opens_it_unless_it_is_only_printed(filled: Filled, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    environ = os.environ | filled.variables | {"BROWSER": str(browser)}
    address = f"{filled.served.url}/runs/{FAILED}"
    assert tightship(environ, "open", "f00", "--print").stdout == f"{address}\n"
    assert not (tmp_path / "opened").exists()
    done = tightship(environ, "open", "f00")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{address}\n", "")
    assert (tmp_path / "opened").read_text() == address
    done = tightship(environ | {"BROWSER": str(tmp_path / "none")}, "open", "f00")
    assert (done.returncode, done.stdout) == (0, f"{address}\n")
    assert done.stderr == "No browser could be started; open the address yourself.\n"


def test_what_cannot_be_opened(call: Callable[..., Result], filled: Filled) -> None:
    assert isinstance(call("open", "page", "1").exception, Invalid)
    assert isinstance(call("open", "run", "finding", "1").exception, Invalid)
    for words in (["none"], ["finding", "99"], ["trace", "x"], ["run", filled.capture]):
        assert isinstance(call("open", *words).exception, ApiError), words


def test_the_server_names_the_kind_where_a_number_alone_does_not(filled: Filled) -> None:
    assert tuple(SERVED_KINDS) == KINDS
    both = min(filled.findings[-1], filled.trace)
    with filled.served.http(ADMIN) as http:
        answer = http.get("/ids", params={"id": str(both)})
        assert answer.status_code == 409
        assert answer.json()["error"] == (
            f"The id '{both}' is ambiguous: finding {both}, trace {both}; name the kind: `finding {both}`"
        )
        assert http.get("/ids", params={"id": "1", "kind": "nonsense"}).status_code == 422
        found = ok(http.get("/ids", params={"id": str(filled.findings[0]), "kind": "finding"}))
        assert (found["run"], found["capture"], found["rank"]) == (FAILED, filled.capture, 1)


def test_where_browsers_find_the_server_is_what_it_says(make_platform_env: Any) -> None:
    env = make_platform_env()
    settings = replace(env.settings, token=ADMIN, public_url="https://tightship.example")
    with serving(settings) as served, served.http(ADMIN) as http:
        ok(http.post("/runs", json=run_record(FAILED)))
        environ = env.environ | {"TIGHTSHIP_SERVER": served.url, "TIGHTSHIP_TOKEN": ADMIN}
        assert tightship(environ, "open", "@", "--print").stdout == f"https://tightship.example/runs/{FAILED}\n"
