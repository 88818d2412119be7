"""*Did it work?* in a real browser: what was applied, predicted and measured, and the ways that lead there.

The rows come as they do from a fleet: steps through control files and ingest, actions through the API, verdicts by the
worker's own comparison.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_calls import Served, ok, serving
from stepping_runs import CLAIM, TEXT, opportunity, record

from tightship_analyzers.fleet import verifying
from tightship_platform.units import now_ns

pytestmark = pytest.mark.browser

Tab = Any
NASTY = "<img src=x onerror=alert(1)>`=1+1"
CHANGES: dict[str, tuple[str, tuple[float, float, float], float, float, str, str]] = {
    "vision-base": ("vision", (0.3, 0.25, 0.4), 14.0, 0.004, TEXT["title"], TEXT["fix"]),
    "llm-7b": (
        *("language", (0.12, 0.09, 0.15), 20.6, 0.004),
        *("The optimizer launches kernels for each parameter", "Create the optimizer with foreach=True"),
    ),
    "reco-ranker": (
        *("ranking", (0.2, 0.17, 0.24), 13.4, 0.004),
        *("The host reads a scalar every step", "Read the loss every 100 steps"),
    ),
    "speech": (
        *("vision", (0.05, 0.01, 0.08), 19.8, 0.2),
        *("Batches are copied from pageable memory", "Give the loader pin_memory=True"),
    ),
}
"""Workflow → team; what is predicted, with its interval; the step after the change in ms, and the spread of its pace;
what was wrong, and the change."""
WAITS, UNWANTED = "tabular", "segmenter"


@pytest.fixture(scope="module")
def acted(make_platform_env: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with changes that were verified, refuted, are undecided, wait, were withdrawn and dismissed."""
    folder = tmp_path_factory.mktemp("runs")
    with serving(make_platform_env().settings) as served, served.http() as api:
        ids = {}
        for workflow, (team, (value, low, high), _, _, wrong, fix) in CHANGES.items():
            claim = CLAIM | {"share_frac": value, "low_frac": low, "high_frac": high, "method": "simulated"}
            named = {"key": f"{workflow}-1", "workflow": workflow, "team": team}
            text = TEXT | {"title": wrong, "fix": fix}
            ids[workflow] = opportunity(served.database, folder, seconds=240, claim=claim, text=text, **named)
        for workflow in (WAITS, UNWANTED):
            named = {"key": f"{workflow}-1", "workflow": workflow, "team": "vision"}
            ids[workflow] = opportunity(served.database, folder, seconds=60, **named)
        for workflow in CHANGES:
            ok(api.post(f"/opportunities/{ids[workflow]}/apply", json={"reason": f"commit 5eed of {workflow}"}))
        for verb, reason in (("apply", "first try"), ("reopen", "not yet"), ("apply", None)):
            ok(api.post(f"/opportunities/{ids[WAITS]}/{verb}", json={"reason": reason}))
        ok(api.post(f"/opportunities/{ids[UNWANTED]}/dismiss", json={"reason": "it ends next week"}))
        for seed, (workflow, (team, _, step_ms, spread, _, _)) in enumerate(CHANGES.items()):
            pace = {"step_ms": step_ms, "spread": spread, "seed": seed + 2, "seconds": 240}
            key = f"{workflow}-2"
            record(served.database, folder, key, start_ns=now_ns(), workflow=workflow, team=team, **pace)
        verifying.verify_applications(served.database)
        states = {one["workflow"]: one["state"] for one in reversed(ok(api.get("/actions")))}
        assert states == {
            "vision-base": "verified",
            "llm-7b": "refuted",
            "reco-ranker": "verified",
            "speech": "applied",
            WAITS: "applied",
            UNWANTED: None,
        }
        yield served


def row(here: Tab, text: str) -> Any:
    """The table's row with this text."""
    return here.page.locator(".ag-center-cols-container .ag-row", has_text=text)


def test_the_page_says_what_worked_and_leads_to_each_change(
    acted: Served, tab: Callable[..., Tab], tmp_path: Path
) -> None:
    with acted.http() as api:
        [dismissed] = ok(api.get("/actions", params={"workflow": UNWANTED}))
        for verb in ("reopen", "dismiss"):
            ok(api.post(f"/opportunities/{dismissed['opportunity']}/{verb}", json={"reason": NASTY}))
    here = tab(acted.url)
    here.open("/")
    press = here.page.keyboard.press
    press("g")
    press("d")
    here.page.wait_for_url("**/did-it-work")
    here.page.wait_for_selector("#actions .ag-row")
    assert here.page.title() == "Did it work? · tightship"
    assert re.fullmatch(
        "Of 6 applied changes, 2 are verified, 1 is refuted, 2 wait for runs that tell and 1 was withdrawn. "
        r"[12] of 4 measured savings lies? in the predicted interval; the two intervals overlap in [12]\.",
        here.answer(),
    )
    here.page.wait_for_selector("#actions-chart .scatterlayer .points path")
    here.settle()
    assert here.page.locator("#actions-chart .scatterlayer .points path.point").count() == 4
    shown = row(here, "vision-base").inner_text().replace("\u00a0", " ")
    assert "verified" in shown and "30.0 % (25.0–40.0), simulated" in shown and "Give the loader workers" in shown
    assert "No run of the workflow has started" in row(here, WAITS).first.inner_text()

    # Filters live in the address, and back works.
    here.page.get_by_role("link", name="refuted", exact=True).click()
    here.page.wait_for_url("**/did-it-work?state=refuted")
    here.page.locator("#page .answer", has_text="Of 1 applied change, 1 is refuted. Its measured saving").wait_for()
    here.page.go_back()
    here.page.locator("#page .answer", has_text="Of 6").wait_for()
    here.page.locator("#actions-team").click()
    here.page.get_by_role("option", name="vision", exact=True).click()
    here.page.wait_for_url("**/did-it-work?team=vision")
    here.page.locator("#page .answer", has_text="Of 4 applied changes of team vision, 1 is verified").wait_for()
    here.page.locator("#actions-workflow").click()
    here.page.get_by_role("option", name=UNWANTED).click()
    here.page.wait_for_url("**/did-it-work?team=vision&workflow=segmenter")
    here.page.locator("#page .answer", has_text="0 changes of segmenter of team vision were applied.").wait_for()
    with here.page.expect_download() as download:
        here.page.get_by_role("button", name="Export CSV").click()
    download.value.save_as(tmp_path / "actions.csv")
    with (tmp_path / "actions.csv").open(encoding="utf-8-sig", newline="") as file:
        exported = list(csv.DictReader(file))
    assert [line["State"] for line in exported] == ["dismissed", "reopened", "dismissed"]
    assert exported[0]["Why"].startswith("<img src=x") and exported[2]["Why"] == "it ends next week"

    here.open("/did-it-work?opportunity=999999")
    here.page.locator("#page .notice", has_text="No opportunity named '999999'").wait_for()
    here.open("/did-it-work?opportunity=x")
    here.page.locator("#page .notice", has_text="expected a number").wait_for()
    here.page.locator("#page").get_by_role("link", name="all that was done").click()
    here.page.locator("#page .answer", has_text="Of 6").wait_for()

    # A point of the chart, and Enter on a row's link, lead to the change.
    # Its points lie below what Plotly listens with.
    box = here.page.locator("#actions-chart .scatterlayer .points path.point").first.bounding_box()
    here.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    here.page.locator("#actions-chart .hoverlayer .hovertext").wait_for()
    here.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    here.page.wait_for_url("**/did-it-work/*")
    here.page.locator("#page h1", has_text="Did this change work?").wait_for()
    here.page.go_back()
    row(here, "llm-7b").locator('[col-id="what"]').click()
    press("Enter")
    here.page.wait_for_url("**/did-it-work/*")
    here.page.locator("#page .answer", has_text="No: a step of llm-7b takes").wait_for()


def test_one_change_shows_both_runs_and_what_else_was_done(acted: Served, tab: Callable[..., Tab]) -> None:
    here = tab(acted.url)
    here.open("/did-it-work?workflow=vision-base")
    row(here, "vision-base").locator('[col-id="what"] a').click()
    here.page.locator("#page .answer", has_text="Yes: a step of vision-base takes").wait_for()
    here.page.wait_for_selector("#action-intervals .scatterlayer .points path")
    text = here.page.locator("#page").inner_text().replace("\u00a0", " ")
    for words in (
        "30.0 % (25.0–40.0), simulated",
        "as predicted",
        "train.py:7",
        "commit 5eed of vision-base",
        "loopback",
    ):
        assert words in text, words
    assert here.page.locator("#change .command code").inner_text() == "DataLoader(data, num_workers=8)"
    assert here.page.locator("#change pre.before").inner_text() == "DataLoader(data)"
    assert "Neither labels nor options" in text, "what is not known of the runs"
    numbers = [line.split() for line in here.page.locator("#runs tbody tr").all_inner_texts()]
    assert numbers[0] == ["run", "vision-base-1", "vision-base-2"]
    assert numbers[1][3:] == ["20.0", "ms", "14.0", "ms"]

    # From the runs that were compared, and back.
    here.page.locator("#runs").get_by_role("link", name="vision-base-2").click()
    here.page.wait_for_url("**/runs/vision-base-2")
    compared = here.page.locator("#compared")
    compared.get_by_text("with vision-base-1, from before the change").wait_for()
    assert ": verified, measured" in compared.inner_text()
    compared.get_by_role("link", name="vision-base-1").click()
    here.page.locator("#compared", has_text="with vision-base-2, from after the change").wait_for()
    here.page.locator("#compared").get_by_role("link", name="Give the loader workers").click()
    here.page.locator("#page .answer", has_text="Yes: a step of vision-base").wait_for()

    # What was withdrawn, and why; from the finding, with the command to go on.
    here.open("/did-it-work?workflow=tabular&state=withdrawn")
    row(here, WAITS).locator('[col-id="what"] a').click()
    here.page.locator("#page .answer", has_text="was withdrawn before a run could tell").wait_for()
    history = here.page.locator("#history").inner_text()
    assert "reopened (“not yet”)" in history and "applied" in history
    here.open("/did-it-work?workflow=segmenter")
    row(here, UNWANTED).first.locator('[col-id="what"] a').click()
    here.page.locator("#page .answer", has_text="dismissed an opportunity of segmenter").wait_for()

    # From the opportunities and findings to what was done about them.
    here.open("/")
    first = here.page.locator("#opportunities .ag-center-cols-container .ag-row", has_text="llm-7b")
    first.locator('[col-id="state"] a', has_text="refuted").click()
    here.page.wait_for_url("**/did-it-work?opportunity=*")
    here.page.locator("#page .answer", has_text="Of 1 applied change for opportunity").wait_for()
    here.open("/findings/1")
    here.page.locator("#actions").get_by_role("link", name="verified").click()
    here.page.locator("#page .answer", has_text="Yes: a step of vision-base").wait_for()


def test_whole_pages_in_both_themes_and_on_a_phone(acted: Served, tab: Callable[..., Tab]) -> None:
    here = tab(acted.url)
    for scheme, width, other_width in (("light", 1440, 390), ("dark", 390, 1440)):
        here.look(scheme, width)
        for path, name in (("/did-it-work", "did-it-work"), ("/did-it-work/1", "change"), ("/did-it-work/7", "")):
            here.open(path)
            here.settle()
            assert not here.scrolls_sideways(), path
            if name:
                here.page.wait_for_selector(".scatterlayer .points path")
                here.picture(name)
            here.page.set_viewport_size({"width": other_width, "height": 900})
            here.settle()
            assert not here.scrolls_sideways(), f"{path}: {width} made {other_width} wide"
            here.page.set_viewport_size({"width": width, "height": 900})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(acted: Served, tab: Callable[..., Tab], scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    here = tab(acted.url, scheme=scheme, width=1440 if scheme == "light" else 390)
    for path in ("/did-it-work", "/did-it-work/1", "/did-it-work/7", "/runs/vision-base-2", "/findings/1", "/"):
        here.open(path)
        here.settle()
        found = axe.run(here.page).response["violations"]
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        assert [(path, one["id"], one["nodes"][0]["html"]) for one in serious] == []


def test_an_empty_page_teaches_what_to_do_next(nothing_yet: Served, tab: Callable[..., Tab]) -> None:
    here = tab(nothing_yet.url, scheme="dark", width=390)
    here.open("/did-it-work")
    assert here.answer() == "0 changes were applied."
    assert here.page.locator(".empty code").all_inner_texts() == ["tightship opportunities", "tightship apply 1"]
    here.settle()
    assert not here.scrolls_sideways()
    here.open("/did-it-work/7")
    here.page.locator("#page .answer", has_text="No action named '7'").wait_for()
    assert all("404" in line for line in here.watch.wrong)
    here.watch.wrong.clear()
