"""The page that `tightship analyze --html` writes, in a real browser and without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tightship_analyzers.analysis.from_files import analyze_paths
from tightship_analyzers.analysis.wanted import Wanted
from tightship_analyzers.report.html.page import page

RECORDED = Path(__file__).parents[1] / "data" / "traces"
DARK_PAPER = "rgb(20, 22, 26)"

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 280)])
def test_it_shows_in_any_window_and_theme(chromium: Any, tmp_path: Path, scheme: str, width: int) -> None:
    target = tmp_path / "report.html"
    names = ("starved", "fed", "checkpoints", "loop", "single_tensor")
    paths = [str(RECORDED / f"{name}.json.gz") for name in names]
    target.write_text(page(analyze_paths(paths, wanted=Wanted(gaps=2))), encoding="utf-8")
    said: list[str] = []
    context = chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    view = context.new_page()
    view.on("console", lambda message: said.append(message.text))
    view.on("pageerror", lambda error: said.append(str(error)))
    view.on("request", lambda request: said.append(request.url) if not request.url.startswith("file:") else None)
    view.goto(target.as_uri())
    assert view.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    paper = view.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (paper == DARK_PAPER) == (scheme == "dark")
    view.keyboard.press("Tab")
    assert view.evaluate("document.activeElement.getAttribute('href')") == "#what", "first the way to the findings"
    drawn = view.locator("svg.gap").first.bounding_box()
    assert drawn is not None and 100 < drawn["width"] <= width
    context.close()
    assert said == []
