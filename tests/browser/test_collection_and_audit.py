"""*Is the collection healthy?* and *Who did what?* in a real browser: with little, with much, and for whom."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_calls import Served, heartbeat, ok, serving

from tightship_platform.api.auth import create_token
from tightship_platform.database.audit import audit
from tightship_platform.vocabulary import Scope

pytestmark = pytest.mark.browser

Tab = Any
ADMIN = "an-administrators-own-token"
NASTY = "<img src=x onerror=alert(1)>`=1+1"


@pytest.fixture(scope="module")
def closed(make_platform_env: Callable[..., Any]) -> Iterator[Served]:
    """A server that asks for tokens, one of which was refused."""
    with serving(replace(make_platform_env().settings, token=ADMIN)) as served:
        with served.database.session() as session:
            for number in range(40):
                audit(session, "ann" if number % 4 else NASTY, "trace.download", str(number), peer=NASTY)
            audit(session, "bob", "token.refuse", "GET /")
        with served.http(ADMIN) as http:
            ok(http.post("/hosts/heartbeat", json=heartbeat()))
        yield served


def log_in(here: Tab, served: Served, token: str) -> None:
    here.page.goto(served.url + "/login")
    here.page.fill("input[name=token]", token)
    here.page.get_by_role("button", name="Log in").click()
    here.page.wait_for_selector("#page > *")


def test_an_administrator_finds_who_did_what(closed: Served, tab: Callable[..., Tab], tmp_path: Path) -> None:
    here = tab(closed.url)
    log_in(here, closed, ADMIN)
    here.page.keyboard.press("g")
    here.page.keyboard.press("a")
    here.page.wait_for_url("**/audit")
    here.page.wait_for_selector(".ag-row")
    assert here.page.title() == "Who did what? · tightship"
    here.page.locator("#audit-action").click()
    here.page.get_by_role("option", name="trace.download").click()
    here.page.wait_for_url("**/audit?action=trace.download")
    here.page.locator("#page .answer", has_text="40 entries about trace.download").wait_for()
    here.page.locator("#audit-actor").click()
    here.page.get_by_role("option", name="ann", exact=True).click()
    here.page.wait_for_url("**/audit?action=trace.download&actor=ann")
    here.page.locator("#page .answer", has_text="30 entries about trace.download of ann").wait_for()
    with here.page.expect_download() as download:
        here.page.get_by_role("button", name="Export CSV").click()
    download.value.save_as(tmp_path / "audit.csv")
    with (tmp_path / "audit.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 30 and {row["Who"] for row in rows} == {"ann"}
    here.page.go_back()
    here.page.locator("#page .answer", has_text="40 entries").wait_for()
    here.look("dark", 390)
    here.open("/audit?actor=nobody")
    assert here.answer() == "0 entries of nobody."
    here.settle()
    assert not here.scrolls_sideways()


def test_what_is_off_is_said_first(closed: Served, tab: Callable[..., Tab]) -> None:
    here = tab(closed.url, scheme="dark", width=390)
    log_in(here, closed, ADMIN)
    here.open("/collection")
    here.page.wait_for_selector(".ag-row")
    here.page.locator(".checks li", has_text="nothing was rolled up yet").wait_for()
    here.page.locator(".checks li", has_text="1 entry of refused tokens and logins").wait_for()
    assert "below need a look" in here.answer()
    here.settle()
    assert not here.scrolls_sideways()


def test_who_did_what_is_for_administrators(closed: Served) -> None:
    with closed.database.session() as session:
        reader = create_token(session, "reader", [Scope.READ])
    headers = {"accept": "text/html", "authorization": f"Bearer {reader}"}
    with httpx.Client(base_url=closed.url, headers=headers, trust_env=False) as http:
        page = http.get("/audit")
        assert page.status_code == 403 and "lacks the scope" in page.text and "trace.download" not in page.text
        assert http.get("/collection").status_code == 200
        asked = {
            "output": "..page.children...title.data..",
            "outputs": [{"id": "page", "property": "children"}, {"id": "title", "property": "data"}],
            "inputs": [{"id": "url", "property": "pathname", "value": "/audit"}],
            "changedPropIds": ["url.pathname"],
            "state": [{"id": "url", "property": "search", "value": ""}],
        }
        drawn = http.post("/_dash-update-component", json=asked)
        assert "lacks the scope" in drawn.text and "trace.download" not in drawn.text


def test_empty_pages_say_what_to_do(nothing_yet: Served, tab: Callable[..., Tab]) -> None:
    here = tab(nothing_yet.url, width=390)
    for path, command in (("/collection", "tightship agent"), ("/audit", "tightship audit")):
        here.open(path)
        here.page.locator(".empty code", has_text=command).first.wait_for()
        here.settle()
        assert not here.scrolls_sideways()
