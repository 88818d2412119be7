"""What moves while somebody looks: captures, new runs, rows; who may do what; and names that try to be markup."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_calls import HOST, RUN, Served, heartbeat, ok, run_record, serving, sha256, trace_file

from tightship_platform import captures
from tightship_platform.api.auth import create_token
from tightship_platform.vocabulary import Scope

pytestmark = pytest.mark.browser

Tab = Any


@pytest.fixture
def served(make_platform_env: Callable[..., Any]) -> Iterator[Served]:
    """A server of this test's own, without tokens."""
    with serving(make_platform_env().settings) as server:
        yield server


class Agent:
    """Does through the API what the agent of a host does, when the test says so."""

    def __init__(self, api: httpx.Client) -> None:
        self.api = api
        ok(api.post("/runs", json=run_record()))
        self.sees()
        self.capture = ""

    def sees(self) -> None:
        """A heartbeat with the run alive."""
        ok(self.api.post("/hosts/heartbeat", json=heartbeat()))

    def takes(self) -> None:
        """The capture that waits."""
        leases = ok(self.api.post("/captures/lease", json={"host": HOST, "runs": [RUN]}))["leases"]
        assert len(leases) == 1
        self.capture = leases[0]["capture"]

    def reports(self, state: str, **more: Any) -> None:
        """How far it is."""
        ok(self.api.post(f"/captures/{self.capture}/report", json={"host": HOST, "state": state} | more))

    def uploads(self) -> None:
        """The trace of the only rank."""
        data = trace_file()
        answer = self.api.put(
            f"/captures/{self.capture}/traces/0",
            params={"pid": 100, "host": HOST},
            headers={"x-sha256": sha256(data)},
            content=data,
        )
        ok(answer)


def stage(tab: Tab, word: str) -> None:
    """Wait until the newest capture stands there."""
    tab.page.locator(".capture").first.locator(f".capture-state.{word}").wait_for()


@pytest.mark.sliced(1)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_capture_asked_for_by_button_moves_through_its_stages(
    served: Served, tab: Callable[..., Tab], scheme: str
) -> None:
    with served.http() as api:
        agent = Agent(api)
        here = tab(served.url, scheme=scheme)
        here.open(f"/runs/{RUN}")
        button = here.page.get_by_role("button", name="Capture a trace now")
        assert button.is_enabled()
        button.click()
        stage(here, "requested")
        here.page.get_by_text("A capture is under way.").wait_for()
        assert button.is_disabled()
        agent.takes()
        stage(here, "leased")
        agent.reports("armed", expected=[{"rank": 0, "pid": 100}])
        stage(here, "armed")
        agent.reports("recording")
        stage(here, "recording")
        assert here.page.locator('.stages li[aria-current="step"] span').inner_text() == "recording"
        agent.reports("written")
        agent.uploads()
        stage(here, "uploaded")
        with served.database.session() as session:
            work = captures.claim_work(session, agent.capture)
            assert work is not None
            captures.trace_analyzed(session, work)
            captures.analyzed(session, agent.capture)
        stage(here, "analyzed")
        assert here.page.locator(".stages li.done").count() == 7
        here.page.get_by_text("all traces after").wait_for()
        with here.page.expect_download() as download:
            here.page.get_by_role("link", name="rank 0").click()
        assert Path(download.value.path()).stat().st_size > 0
        here.page.locator("#run-capture:enabled").wait_for()
        asked = ok(api.get("/captures"))
        assert [c["requested_by"] for c in asked] == ["dashboard"]


def test_a_capture_that_fails_says_why(served: Served, tab: Callable[..., Tab]) -> None:
    with served.http() as api:
        agent = Agent(api)
        here = tab(served.url)
        here.open(f"/runs/{RUN}")
        here.page.get_by_role("button", name="Capture a trace now").click()
        stage(here, "requested")
        agent.takes()
        agent.reports("failed", reason="run ended")
        stage(here, "failed")
        assert here.page.locator(".capture .notice.error").first.inner_text() == "run ended"


def test_a_run_that_ends_disables_the_button_and_says_so(served: Served, tab: Callable[..., Tab]) -> None:
    with served.http() as api:
        agent = Agent(api)
        here = tab(served.url)
        here.open(f"/runs/{RUN}")
        record = run_record()
        agent.api.post("/runs", json=record | {"end_ns": record["start_ns"] + 50_000_000_000, "exit_code": 3})
        here.page.get_by_text("The run is failed; only a live run can be captured.").wait_for()
        assert here.page.get_by_role("button", name="Capture a trace now").is_disabled()
        here.page.locator(".state", has_text="failed").wait_for()
        assert "with exit code 3" in here.answer()


def test_runs_come_live_and_what_is_being_read_does_not_move(served: Served, tab: Callable[..., Tab]) -> None:
    with served.http() as api:
        here = tab(served.url)
        here.open("/runs")
        assert here.answer() == "No run is known yet."
        ok(api.post("/runs", json=run_record("00000000000000a1", workflow="first")))
        here.page.locator(".ag-row", has_text="first").wait_for()
        ok(api.post("/runs", json=run_record("00000000000000a2", workflow="second")))
        here.page.locator(".ag-row", has_text="second").wait_for()
        here.page.locator('.ag-row[row-index="0"]', has_text="second").wait_for()  # the newest first
        # Somebody stands in a cell: a third run waits behind a button.
        here.page.locator('.ag-row[row-index="1"] [col-id="team"]').click()
        ok(api.post("/runs", json=run_record("00000000000000a3", workflow="third")))
        here.page.get_by_role("button", name="1 new run, show").wait_for()
        assert here.page.locator(".ag-center-cols-container .ag-row").count() == 2
        # What is shown changes in place meanwhile.
        record = run_record("00000000000000a1", workflow="first")
        ok(api.post("/runs", json=record | {"end_ns": record["start_ns"] + 9_000_000_000, "exit_code": 0}))
        here.page.locator('.ag-row[row-index="1"]', has_text="finished").wait_for()
        here.page.get_by_role("button", name="1 new run, show").click()
        here.page.locator('.ag-row[row-index="0"]', has_text="third").wait_for()


HOSTILE = '<img src=x onerror="window.hacked=1">\n<script>window.hacked=2</script>'


def test_names_that_try_to_be_markup_stay_text(served: Served, tab: Callable[..., Tab], tmp_path: Path) -> None:
    command = ["python", HOSTILE, "\x1b[31m"]
    with served.http() as api:
        one_line = HOSTILE.replace("\n", " ")
        ok(api.post("/runs", json=run_record(workflow=one_line, team="=cmd|' /C calc'!A1", command=command)))
        ok(api.post("/hosts/heartbeat", json=heartbeat()))
    here = tab(served.url)
    for path in ("/runs", f"/runs/{RUN}", "/"):
        here.open(path)
        here.settle()
        assert here.page.evaluate("window.hacked") is None
        assert here.page.locator("#page img, #page script").count() == 0
    here.open("/runs")
    here.page.locator(".ag-row", has_text="<img src=x").wait_for()
    with here.page.expect_download() as download:
        here.page.get_by_role("button", name="Export CSV").click()
    download.value.save_as(tmp_path / "runs.csv")
    with (tmp_path / "runs.csv").open(encoding="utf-8-sig", newline="") as file:
        assert next(csv.DictReader(file))["Team"].startswith("'="), "a spreadsheet must not take it for a formula"


def test_behind_a_login_with_a_token_that_may_only_read(
    make_platform_env: Callable[..., Any], tab: Callable[..., Tab]
) -> None:
    from tightship_platform.database.engine import open_database

    env = make_platform_env()
    with open_database(env.settings) as database, database.session() as session:
        reader = create_token(session, "reader", [Scope.READ])
        writer = create_token(session, "writer", list(Scope))
    with serving(env.settings) as server, server.http(writer) as api:
        Agent(api)
        here = tab(server.url)
        here.page.context.clear_cookies()
        here.page.goto(server.url + f"/runs/{RUN}")
        here.page.get_by_label("Token").fill(reader)
        here.page.get_by_role("button", name="Log in").click()
        here.page.locator(".phases").wait_for()
        assert here.page.url == server.url + f"/runs/{RUN}"
        button = here.page.get_by_role("button", name="Capture a trace now")
        assert button.is_disabled()
        here.page.get_by_text("Your token lacks the scope 'capture'.").wait_for()
        # Who enables the button by hand is still refused, in one line.
        here.page.evaluate("dash_clientside.set_props('run-capture', {disabled: false})")
        button.click()
        here.page.get_by_text("No capture was requested: Token 'reader' lacks the scope 'capture'").wait_for()
        assert ok(api.get("/captures")) == []
        here.settle()
        here.watch.wrong = [line for line in here.watch.wrong if "favicon" not in line and "401" not in line]
