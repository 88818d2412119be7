"""A run's page says that its steps have stopped, and where to ask why."""

from __future__ import annotations

import pytest
from made_records import make

from tightship_dashboard.pages.one_run import _stands_still
from tightship_platform.results.run import RunDetail
from tightship_platform.units import NS_PER_S

START = 1_790_000_000 * NS_PER_S
MIN = 60 * NS_PER_S


def shown(*, steps: int | None, last_min: float | None, now_min: float, state: str = "running") -> str:
    last_ns = None if last_min is None else START + int(last_min * MIN)
    run = make(
        RunDetail, run="5f0c9b1e8a7d4c02", state=state, start_ns=START, steps=steps, last_step_ns=last_ns, host="gpu17"
    )
    return " ".join(str(part) for part in _stands_still(run, START + int(now_min * MIN)))


def test_it_says_for_how_long_and_what_to_run_where() -> None:
    text = shown(steps=100, last_min=10, now_min=22)
    assert "No step for 12" in text and "On gpu17" in text and "sudo tightship why 5f0c9b1e8a7d4c02" in text


@pytest.mark.parametrize(
    ("steps", "last_min", "now_min", "state"),
    [
        pytest.param(100, 10, 11.5, "running", id="for a moment"),
        pytest.param(2, 20, 60, "running", id="its steps are long"),
        pytest.param(None, None, 60, "running", id="not counted"),
        pytest.param(100, 10, 60, "failed", id="over"),
    ],
)
def test_it_says_nothing(steps: int | None, last_min: float | None, now_min: float, state: str) -> None:
    assert shown(steps=steps, last_min=last_min, now_min=now_min, state=state) == ""
