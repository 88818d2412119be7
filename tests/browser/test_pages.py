"""The pages in a real browser: both themes, a phone's width and a desktop's, without an error in the console."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from api_calls import Served
from simulated_fleet import LIVE_RUN

pytestmark = pytest.mark.browser

Tab = Any
PAGES = {
    "/": ("Where do device-hours go?", "#account .bar", "#fleet-over-time .bars path", ".ag-row"),
    "/runs": ("Runs", ".ag-row", "#runs-workflow", "[data-export]"),
    f"/runs/{LIVE_RUN}": (
        f"Run {LIVE_RUN}",
        ".phase",
        "#run-over-time .scatterlayer path",
        ".stages li",
        "#run-capture",
    ),
    "/will-it-fit": ("Will it fit, and how fast?", "#workflows .ag-row", "#fit-gpu", "details textarea"),
    "/collection": ("Is the collection healthy?", ".checks li", ".ag-row", "[data-export]"),
    "/audit": ("Who did what?", ".ag-row", "#audit-action", "[data-export]"),
    "/findings/1": ("Finding 1", "#finding-gap .barlayer path", "#finding-gap .shapelayer path", ".copy", "details"),
}
PICTURES = {"/": "fleet", f"/runs/{LIVE_RUN}": "run", "/findings/1": "finding"}
"""Names of pictures, where they are not those of pages."""


@pytest.mark.sliced(4)
@pytest.mark.parametrize("path", PAGES)
def test_pages(fleet: Served, tab: Callable[..., Tab], path: str) -> None:
    here = tab(fleet.url)
    for scheme, width, other_width in (("light", 1440, 390), ("dark", 390, 1440)):
        here.look(scheme, width)
        here.open(path)
        _is_whole(here, path, scheme)
        here.picture(PICTURES.get(path, path.strip("/")))
        here.page.set_viewport_size({"width": other_width, "height": 900})
        here.settle()
        assert not here.scrolls_sideways(), f"{width} made {other_width} wide"


def _is_whole(here: Tab, path: str, scheme: str) -> None:
    title, *selectors = PAGES[path]
    for selector in selectors:
        here.page.wait_for_selector(selector, state="attached")
    here.settle()
    assert here.page.title() == f"{title} · tightship"
    assert any(c.isdigit() for c in here.answer())
    assert here.page.evaluate("document.documentElement.dataset.mantineColorScheme") == scheme
    assert not here.scrolls_sideways()
    paper = here.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(255, 254, 252)" if scheme == "light" else "rgb(20, 22, 26)")
    ticks = here.page.locator(".js-plotly-plot .xtick text")
    if ticks.count():
        ink = ticks.first.evaluate("e => getComputedStyle(e).fill")
        assert ink == ("rgb(92, 97, 104)" if scheme == "light" else "rgb(163, 168, 176)"), "charts follow the theme"


@pytest.mark.sliced(1)
@pytest.mark.parametrize("width", [390, 1440])
def test_empty_pages_say_what_to_do_with_the_command_to_copy(
    nothing_yet: Served, tab: Callable[..., Tab], width: int
) -> None:
    here = tab(nothing_yet.url, width=width)
    here.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for path in ("/", "/runs", "/will-it-fit"):
        here.open(path)
        here.settle()
        here.page.evaluate("navigator.clipboard.writeText('')")
        here.page.get_by_role("button", name="Copy").first.click()
        here.page.locator(".copy", has_text="copied").first.wait_for()
        copied = here.page.evaluate("navigator.clipboard.readText()")
        assert copied == "tightship run --workflow mine -- python train.py"
        assert not here.scrolls_sideways()


def test_the_first_paint_is_the_answer_and_comes_before_the_scripts(fleet: Served, tab: Callable[..., Tab]) -> None:
    here = tab(fleet.url, java_script_enabled=False)
    here.page.goto(fleet.url + "/")
    assert "were productive" in here.page.locator("#first-paint .answer").inner_text()
    with_scripts = tab(fleet.url)
    with_scripts.open("/")
    assert with_scripts.page.locator("#first-paint").is_hidden()
    assert with_scripts.page.locator(".answer:visible").count() == 1


def test_an_unknown_thing_is_a_friendly_page(fleet: Served, tab: Callable[..., Tab]) -> None:
    here = tab(fleet.url)
    for path in ("/runs/no-such-run", "/findings/999999", "/nowhere"):
        here.open(path)
        assert here.page.locator("h1").inner_text() == "Nothing here"
        here.page.get_by_role("link", name="Runs", exact=True).click()
        here.page.wait_for_selector(".ag-row")
        # The document itself was a 404, which is right; nothing else may be wrong.
        assert here.watch.wrong[:1] == [f"404 {fleet.url}{path}"]
        assert all("404" in line for line in here.watch.wrong)
        here.watch.wrong.clear()


# ---- behaviour -------------------------------------------------------------------------------------------------------


def test_the_keyboard_reaches_every_page(fleet: Served, tab: Callable[..., Tab]) -> None:
    here = tab(fleet.url)
    here.open("/")
    press = here.page.keyboard.press
    press("g")
    press("r")
    here.page.wait_for_url("**/runs")
    here.page.wait_for_selector(".ag-row")
    press("g")
    press("f")
    here.page.wait_for_url(fleet.url + "/")
    press("?")
    here.page.get_by_role("dialog").wait_for()
    press("Escape")
    here.page.get_by_role("dialog").wait_for(state="hidden")
    press("/")
    assert here.page.evaluate("document.activeElement.id") == "search"
    here.page.get_by_role("option", name="reco-ranker", exact=True).wait_for()
    here.page.keyboard.type("demand-f")
    here.page.get_by_role("option", name="gpt-small", exact=True).wait_for(state="hidden")
    press("Enter")  # the first match
    here.page.wait_for_url("**/runs?workflow=demand-forecast")
    here.page.locator("#page .answer", has_text="No run of demand-forecast is live").wait_for()


def test_a_g_or_a_slash_that_is_typed_is_only_typed(fleet: Served, tab: Callable[..., Tab]) -> None:
    here = tab(fleet.url)
    here.open("/runs")
    here.page.locator("#runs-workflow").click()
    here.page.keyboard.type("gr/?")
    assert here.page.locator("#runs-workflow").input_value() == "gr/?"
    assert here.page.url == fleet.url + "/runs"


def test_the_range_lives_in_the_address_and_back_works(fleet: Served, tab: Callable[..., Tab]) -> None:
    here = tab(fleet.url)
    here.open("/?range=24h")
    assert here.answer().startswith("In the last 24 hours")
    here.page.get_by_role("link", name="30 d", exact=True).click()
    here.page.wait_for_url("**/?range=30d")
    here.page.locator("#page .answer", has_text="In the last 30 days").wait_for()
    here.page.go_back()
    here.page.locator("#page .answer", has_text="In the last 24 hours").wait_for()
    assert here.page.locator(".choice a.here").inner_text() == "24 h"


def test_filters_of_runs_live_in_the_address_and_back_works(fleet: Served, tab: Callable[..., Tab]) -> None:
    here = tab(fleet.url)
    here.open("/runs")
    here.page.get_by_role("link", name="failed", exact=True).click()
    here.page.wait_for_url("**/runs?state=failed")
    here.page.locator("#page .answer", has_text="failed.").wait_for()
    assert here.answer() == "6 runs failed."
    here.page.locator("#runs-workflow").click()
    here.page.get_by_role("option", name="gpt-small").click()
    here.page.wait_for_url("**/runs?state=failed&workflow=gpt-small")
    here.page.locator("#page .answer", has_text="gpt-small").wait_for()
    here.page.locator(".ag-center-cols-container .ag-row").nth(1).wait_for(state="detached")
    here.page.locator(".ag-center-cols-container .ag-row").wait_for()
    here.page.go_back()
    here.page.locator("#page .answer", has_text="6 runs failed.").wait_for()


def test_runs_are_searched_by_what_was_recorded_of_them(fleet: Served, tab: Callable[..., Tab]) -> None:
    """From a run's labels, commit, job and host to all runs that have them, and by whatever somebody types."""
    here = tab(fleet.url)
    here.open(f"/runs/{LIVE_RUN}")
    shown = here.page.locator("#run-head .facts")
    for name in ("lr=3e-4", "481516", "5eed5eed5eed"):
        assert shown.get_by_role("link", name=name).is_visible()
    shown.get_by_role("link", name="lr=3e-4").click()
    here.page.wait_for_url("**/runs?search=lr%3D3e-4")
    here.page.locator("#page .answer", has_text="1 run matches lr=3e-4; 1 is live.").wait_for()
    here.page.locator(".ag-row", has_text=LIVE_RUN).wait_for()
    for scheme, width in (("dark", 390), ("light", 1440)):
        here.look(scheme, width)
        field = here.page.locator("#runs-search")
        field.fill("nowhere at all")
        field.press("Enter")
        here.page.locator("#page .answer", has_text="0 runs match nowhere at all.").wait_for()
        assert "lr=3e-4 commit:5eed1e" in here.page.locator("#runs-body .empty").inner_text()
        assert not here.scrolls_sideways()
        field = here.page.locator("#runs-search")
        field.fill("commit:HEAD")
        field.press("Enter")
        here.page.locator("#runs-body .notice", has_text="commit is 'HEAD'; expected 4 to 64").wait_for()
        here.page.locator("#runs-body").get_by_role("link", name="all runs").click()
        here.page.locator("#page .answer", has_text="that ended").wait_for()
        assert here.page.locator("#runs-search").input_value() == ""
    here.page.locator("#runs-search").fill("state:failed gpt")
    here.page.locator("#runs-search").press("Enter")
    here.page.locator("#page .answer", has_text="failed.").wait_for()
    here.page.go_back()
    here.page.locator("#page .answer", has_text="that ended").wait_for()


def test_the_runs_behind_a_loss_are_one_click_away(fleet: Served, tab: Callable[..., Tab]) -> None:
    here = tab(fleet.url)
    here.open("/")
    here.page.locator("#account").get_by_role("link", name="held idle").click()
    here.page.wait_for_url("**/runs?by=held_idle")
    here.page.wait_for_selector(".ag-row")
    first = here.page.locator('.ag-row[row-index="0"]')
    first.locator('[col-id="workflow"]', has_text="vision-notebooks").wait_for()
    first.locator('[col-id="workflow"] a').click()
    here.page.wait_for_url("**/runs/*")
    here.page.locator(".phases").wait_for()


def test_tables_sort_and_export_plain_values(fleet: Served, tab: Callable[..., Tab], tmp_path: Path) -> None:
    here = tab(fleet.url)
    here.open("/runs")
    here.page.wait_for_selector(".ag-row")
    here.page.locator('.ag-header-cell[col-id="device_h"]').click()
    here.page.wait_for_selector('.ag-header-cell[col-id="device_h"][aria-sort="descending"]')
    with here.page.expect_download() as download:
        here.page.get_by_role("button", name="Export CSV").click()
    download.value.save_as(tmp_path / "runs.csv")
    with (tmp_path / "runs.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    hours = [float(row["Device time, device-hours"]) for row in rows]
    assert len(rows) == 84
    assert hours == sorted(hours, reverse=True)
    started = next(name for name in rows[0] if name.startswith("Started"))
    assert all(row[started].endswith("Z") for row in rows)


def test_nothing_of_the_runs_is_cut_on_a_desktop(fleet: Served, tab: Callable[..., Tab]) -> None:
    here = tab(fleet.url)
    here.open("/runs")
    here.page.wait_for_selector(".ag-row")
    # The longest that these columns hold.
    here.page.evaluate(
        "() => { const node = window.dash_ag_grid.getApi('runs').getDisplayedRowAtIndex(0);"
        "node.setData({...node.data, loss_text: 'unexplained 100 %', lasted_text: '11 h 59 min',"
        "steps_text: '1,234,567', device_h_text: '1,234 h'}) }"
    )
    here.settle()
    cut = here.page.evaluate(
        "() => [...document.querySelectorAll('#runs .ag-header-cell-text, #runs .ag-cell')]"
        ".filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText)"
    )
    assert cut == []


def test_the_theme_is_remembered_and_does_not_flash(fleet: Served, tab: Callable[..., Tab]) -> None:
    here = tab(fleet.url, scheme="light", own=True)
    here.open("/")
    here.page.locator("label", has_text="☾").click()
    here.page.wait_for_selector("html[data-mantine-color-scheme=dark]")
    # Every value that the attribute takes from the document's beginning on.
    here.page.add_init_script(
        "window.schemes = []; new MutationObserver(() => window.schemes.push(document.documentElement?.dataset"
        ".mantineColorScheme)).observe(document, {attributes: true, subtree: true, attributeFilter: "
        "['data-mantine-color-scheme']})"
    )
    here.open("/runs")
    here.settle()
    assert set(here.page.evaluate("window.schemes")) == {"dark"}
    assert here.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 22, 26)"


def test_times_are_in_the_browsers_zone_and_say_so(fleet: Served, tab: Callable[..., Tab]) -> None:
    here = tab(fleet.url)
    here.open(f"/runs/{LIVE_RUN}")
    shown = here.page.locator("time").first
    assert shown.inner_text().endswith(("+01:00", "+02:00"))
    assert shown.get_attribute("title").endswith("Z")
    # The chart begins where the header says that the run did, on the viewer's clock.
    here.page.wait_for_selector("#run-over-time .scatterlayer path")
    begin = here.page.evaluate("document.querySelector('#run-over-time .js-plotly-plot')._fullLayout.xaxis.range[0]")
    assert re.search(r"\d\d:\d\d:\d\d", shown.inner_text())[0] in begin


def test_a_server_that_stops_answering_is_one_line_and_the_page_goes_on(
    make_platform_env: Callable[..., Any], tab: Callable[..., Tab]
) -> None:
    from api_calls import serving

    with serving(make_platform_env().settings) as served:
        here = tab(served.url)
        here.open("/runs")
    here.page.locator("#trouble:visible").wait_for()
    assert "has not answered since" in here.page.locator("#trouble").inner_text()
    assert here.page.locator("#page .answer").is_visible()
    assert all("ERR_CONNECTION" in line or "Failed to load resource" in line for line in here.watch.wrong)
    here.watch.wrong.clear()
