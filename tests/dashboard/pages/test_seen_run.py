"""The page of a run that nobody launched says so, says what it lacks, and offers no capture."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from made_records import make

from tightship_dashboard.figures.elements import seen_badge
from tightship_dashboard.pages.one_run import _capture_button, _captures, _seen
from tightship_platform.results.run import RunDetail


@pytest.mark.parametrize(("source", "is_seen"), [("seen", True), ("launch", False), ("agent", False)])
def test_what_is_missing_of_it_and_how_its_job_gets_it(source: str, is_seen: bool) -> None:
    run = make(RunDetail, run="5f0c9b1e8a7d4c02", state="running", source=source)
    read: Any = SimpleNamespace(run=run, is_live=True, captures=[])
    view: Any = SimpleNamespace(may_capture=True)
    text = " ".join(str(part) for part in _seen(run))
    assert ("its steps are not counted" in text and "tightship run -- CMD" in text) == is_seen
    assert bool(seen_badge(run.is_seen)) == is_seen
    disabled, why = _capture_button(view, read)
    assert (disabled, "was not started by `tightship run`" in why) == (is_seen, is_seen)
    assert ("cannot be captured" in str(_captures(view, read))) == is_seen
