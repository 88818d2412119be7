"""A run's page says that its steps have stopped, how to ask why, and where its processes were when somebody did."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest
from made_records import make

from tightship_dashboard.pages.one_run import _stands_still
from tightship_dashboard.pages.stacks import SHOWN, where_it_was
from tightship_platform.results.run import RunDetail
from tightship_platform.results.stacks import StackDump
from tightship_platform.units import NS_PER_S
from tightship_platform.wire import Frame, ProcessFrames

START = 1_790_000_000 * NS_PER_S
MIN = 60 * NS_PER_S


def shown(*, steps: int | None, last_min: float | None, now_min: float, state: str = "running") -> str:
    last_ns = None if last_min is None else START + int(last_min * MIN)
    run = make(
        RunDetail, run="5f0c9b1e8a7d4c02", state=state, start_ns=START, steps=steps, last_step_ns=last_ns, host="gpu17"
    )
    return " ".join(str(part) for part in _stands_still(run, START + int(now_min * MIN)))


def test_it_says_for_how_long_and_what_to_run() -> None:
    text = shown(steps=100, last_min=10, now_min=22)
    assert "No step for 12" in text and "tightship why 5f0c9b1e8a7d4c02" in text


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


def dump(*processes: ProcessFrames, taken_ns: int | None = START) -> StackDump:
    return StackDump(
        run="a1", host="h1", requested_by="ann", requested_ns=START, taken_ns=taken_ns, processes=list(processes)
    )


def test_the_last_stacks_are_shown_as_text() -> None:
    utc = ZoneInfo("UTC")
    assert where_it_was(None, utc) == where_it_was(dump(taken_ns=None), utc) == []
    inside = [Frame(function="all_reduce", file="/x/torch/distributed/distributed_c10d.py", line=2)]
    away = [Frame(function="<script>alert(1)</script>", file="/job/`train`.py", line=11)]
    first = ProcessFrames(pid=7, rank=0, steps=3, last_step_ns=START - MIN, runs=False, frames=inside)
    second = ProcessFrames(pid=8, rank=1, steps=3, runs=True, frames=away)
    notice, details = where_it_was(dump(first, second, ProcessFrames(pid=9, reason="py-spy may not look")), utc)
    assert "Rank 0 waits in all_reduce, which rank 1 has not called" in notice.children  # type: ignore[union-attr]
    _, *parts = details.children  # type: ignore[union-attr]
    assert [part.children for part in parts] == [
        "rank 0 (process 7), 3 steps",
        "/x/torch/distributed/distributed_c10d.py:2 all_reduce",
        "rank 1 (process 8), 3 steps",
        "/job/`train`.py:11 <script>alert(1)</script>",
        "other (process 9)",
        "py-spy may not look",
    ]
    _, many = where_it_was(dump(*[ProcessFrames(pid=n + 1) for n in range(SHOWN + 3)]), utc)
    assert "And 3 more" in str(many)
