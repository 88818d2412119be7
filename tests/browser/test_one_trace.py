"""*One trace* in a real browser: a capture of two ranks, walked by mouse and keyboard, in both themes and widths."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_calls import Served, serving
from captured import a_capture, analyze_capture, begin, recorded

from tightship_platform.captures.artifact_store import open_artifacts
from tightship_platform.database.engine import open_database
from tightship_platform.units import now_ns

pytestmark = pytest.mark.browser

Tab = Any
SECTIONS = ("where", "ranks", "steps", "what", "idle", "across", "path", "device", "notes")
BESIDE_ITS_TABLE = """[...document.querySelectorAll(".grid-body")].flatMap(table =>
  [...table.querySelectorAll(".ag-cell")]
  .filter(cell => cell.getBoundingClientRect().right > table.getBoundingClientRect().right + 1)
  .map(cell => table.id + " " + cell.getAttribute("col-id")))"""
"""Cells that a narrow screen cuts."""
PERFETTO = """<!doctype html><title>stands for Perfetto</title><script>
window.addEventListener("message", e => {
  if (e.data === "PING") e.source.postMessage("PONG", e.origin);
  else if (e.data.perfetto) document.title = e.data.perfetto.title + " " + e.data.perfetto.buffer.byteLength;
});
</script>"""


@pytest.fixture(scope="module")
def captured_run(make_platform_env: Callable[..., Any]) -> Iterator[tuple[Served, str, str]]:
    """A server with an analyzed capture of two ranks, and one whose trace waits for a worker."""
    settings = make_platform_env().settings
    with open_database(settings) as database:
        with database.session() as session:
            begin(session, "a1", "vision")
            begin(session, "a2", "science")
        artifacts = open_artifacts(settings)
        files = {0: recorded("starved"), 1: recorded("checkpoints")}
        key = a_capture(database, artifacts, "a1", files, now=now_ns())
        analyze_capture(database, artifacts, key)
        waiting = a_capture(database, artifacts, "a2", {0: recorded("loop")}, now=now_ns())
    with serving(settings) as served:
        yield served, key, waiting


@pytest.mark.sliced(1)
@pytest.mark.parametrize(("scheme", "width", "other"), [("light", 1440, 390), ("dark", 390, 1440)])
def test_the_whole_page(
    captured_run: tuple[Served, str, str], tab: Callable[..., Tab], scheme: str, width: int, other: int
) -> None:
    served, key, _ = captured_run
    here = tab(served.url, scheme=scheme, width=width)
    here.open(f"/traces/{key}")
    for name in SECTIONS:
        here.page.wait_for_selector(f"section#{name}", state="attached")
    here.page.wait_for_selector("figure.gap .barlayer path")
    here.settle()
    assert here.page.title() == f"Trace {key} · tightship"
    assert re.search(r"\. 2 ranks of vision, recorded \d+ \w+, [\d:]{8} \+0[12]:00\.$", here.answer())
    assert not here.scrolls_sideways()
    assert not here.page.evaluate(BESIDE_ITS_TABLE)
    here.picture("trace")
    here.page.set_viewport_size({"width": other, "height": 900})
    here.settle()
    assert not here.scrolls_sideways()
    assert not here.page.evaluate(BESIDE_ITS_TABLE)


def test_from_the_run_to_a_rank_to_a_finding_and_back(
    captured_run: tuple[Served, str, str], tab: Callable[..., Tab]
) -> None:
    served, key, _ = captured_run
    here = tab(served.url)
    here.open("/runs/a1")
    here.page.get_by_role("link", name="Read the analysis").click()
    here.page.wait_for_url(f"**/traces/{key}")
    here.page.get_by_role("navigation", name="Rank").get_by_role("link", name="rank 1").focus()
    here.page.keyboard.press("Enter")
    here.page.wait_for_url(f"**/traces/{key}?rank=1")
    here.page.get_by_role("heading", name="Where the step of rank 1 went").wait_for()
    here.page.go_back()
    here.page.get_by_role("heading", name="Where the step of rank 0 went").wait_for()
    here.page.locator("#trace-findings .ag-row a").first.click()
    here.page.wait_for_url("**/findings/*")
    here.page.get_by_role("link", name="All that this trace says").click()
    here.page.wait_for_url(f"**/traces/{key}?rank=*")


def test_a_gap_zooms_and_tables_export(
    captured_run: tuple[Served, str, str], tab: Callable[..., Tab], tmp_path: Path
) -> None:
    served, key, _ = captured_run
    here = tab(served.url)
    here.open(f"/traces/{key}")
    plot = "document.querySelector('figure.gap .js-plotly-plot')._fullLayout.xaxis.range"
    here.page.wait_for_selector("figure.gap .barlayer path")
    here.settle()
    area = here.page.locator("figure.gap .nsewdrag").first
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    before = here.page.evaluate(plot)
    y = box["y"] + min(60, box["height"] / 2)
    here.page.mouse.move(box["x"] + 0.4 * box["width"], y)
    here.page.mouse.down()
    here.page.mouse.move(box["x"] + 0.6 * box["width"], y, steps=5)
    here.page.mouse.up()
    here.settle()
    after = here.page.evaluate(plot)
    assert after[1] - after[0] < 0.5 * (before[1] - before[0])
    with here.page.expect_download() as download:
        here.page.locator("[data-export=trace-idle]").click()
    download.value.save_as(tmp_path / "idle.csv")
    with (tmp_path / "idle.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows and all(row["Cause"] and row["Place"] for row in rows)
    shares = [float(row["Share, 0..1"]) for row in rows]
    assert shares == sorted(shares, reverse=True)


def test_perfetto_is_handed_the_file(captured_run: tuple[Served, str, str], tab: Callable[..., Tab]) -> None:
    served, key, _ = captured_run
    here = tab(served.url)
    here.page.context.route(
        "https://ui.perfetto.dev/**", lambda route: route.fulfill(body=PERFETTO, content_type="text/html")
    )
    here.open(f"/traces/{key}")
    with here.page.expect_popup() as popup:
        here.page.get_by_role("button", name="Open in Perfetto").click()
    wanted = f"vision, rank 0 {len(recorded('starved'))}"
    popup.value.wait_for_function("title => document.title === title", arg=wanted)


def test_a_capture_that_waits_is_followed_and_analyzed_again(
    captured_run: tuple[Served, str, str], tab: Callable[..., Tab]
) -> None:
    served, _, waiting = captured_run
    here = tab(served.url)
    here.open(f"/traces/{waiting}")
    assert "are being analyzed" in here.answer()
    artifacts = open_artifacts(served.settings)
    assert analyze_capture(served.database, artifacts, waiting)
    here.page.wait_for_selector("section#where")
    here.page.get_by_role("button", name="Analyze again").click()
    here.page.get_by_text("It is being analyzed again").wait_for()
    assert here.page.locator("section#where").count() == 1, "the earlier analysis stays"
    assert analyze_capture(served.database, artifacts, waiting)
    here.page.get_by_text("It is being analyzed again").wait_for(state="detached")
