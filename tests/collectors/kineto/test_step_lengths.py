"""Whether recording stretched the steps, by the counters of the job: what is compared with what."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tightship_collectors.jobs import control_file as layout
from tightship_collectors.jobs.live_run import HostRun, RankView
from tightship_collectors.jobs.ranks import start_ticks_of
from tightship_collectors.kineto.manifest import Manifest, RankTrace
from tightship_collectors.kineto.rank_process import RankProcess
from tightship_collectors.kineto.step_lengths import EXPORT_NS, MIN_STEPS, RecordedSteps, UntracedSteps, decide_passes
from tightship_platform.units import NS_PER_MS, NS_PER_S
from tightship_platform.wire import STRETCHED, CaptureParams

RUN = "a" * 16
PID = os.getpid()
T0 = 1_000 * NS_PER_S


def looks(paces: UntracedSteps, steps: list[tuple[int, int]], *, recorded: bool = False, first_ns: int = T0) -> None:
    """Looks at a counter: (steps, end of the newest in ms after T0)."""
    for count, at_ms in steps:
        view = RankView(
            rank=0,
            pid=PID,
            guard=True,
            steps=count,
            first_step_ns=first_ns,
            last_step_ns=T0 + at_ms * NS_PER_MS,
            is_rank=True,
        )
        run = HostRun(run=RUN, run_dir=Path("/nowhere"), uid=0, pids=(PID,), ranks=(view,), start_ns=0)
        paces.look([run], {RUN} if recorded else set(), T0 + at_ms * NS_PER_MS)


def test_the_typical_step_is_the_median_of_what_was_seen() -> None:
    paces = UntracedSteps()
    assert paces.typical_ns(RUN, PID) is None
    # A checkpoint of four seconds between two looks does not count for more than its steps.
    looks(paces, [(100, 1000), (200, 2000), (201, 6000), (301, 7000)])
    assert paces.typical_ns(RUN, PID) == 10 * NS_PER_MS
    assert paces.typical_ns(RUN, PID + 1) is None
    assert paces.typical_ns("b" * 16, PID) is None


def test_what_is_recorded_and_its_export_do_not_count() -> None:
    paces = UntracedSteps()
    looks(paces, [(100, 1000), (200, 2000)])
    looks(paces, [(210, 3000), (220, 4000)], recorded=True)
    after_ms = 4000 + EXPORT_NS // NS_PER_MS
    looks(paces, [(230, 5000), (250, after_ms)])
    assert paces.typical_ns(RUN, PID) == 10 * NS_PER_MS
    looks(paces, [(300, after_ms + 1000), (1300, after_ms + 6000)])
    assert paces.typical_ns(RUN, PID) == 5 * NS_PER_MS, "the newest thousand steps outweigh the first hundred"


def test_an_agent_that_has_just_begun_goes_by_the_mean_of_the_jobs_life() -> None:
    paces = UntracedSteps()
    looks(paces, [(MIN_STEPS, 1000)])
    assert paces.typical_ns(RUN, PID) is None
    looks(paces, [(MIN_STEPS + 1, 2000)])
    assert paces.typical_ns(RUN, PID) == 2 * NS_PER_S // MIN_STEPS


def test_a_run_that_is_gone_is_forgotten() -> None:
    paces = UntracedSteps()
    looks(paces, [(100, 1000), (200, 2000)])
    paces.look([], set(), T0)
    assert paces.typical_ns(RUN, PID) is None


@pytest.mark.parametrize("steps", [[(5, 1000), (3, 2000)], [(5, 1000), (50, 1000)], [(50, 2000), (90, 1000)]])
def test_a_counter_that_makes_no_sense_says_nothing(steps: list[tuple[int, int]]) -> None:
    paces = UntracedSteps()
    looks(paces, steps, first_ns=T0 + 10 * NS_PER_S)
    assert paces.typical_ns(RUN, PID) is None


class Counter:
    """The control file of this process, and a capture of it that began at T0."""

    def __init__(self, run_dir: Path, params: CaptureParams) -> None:
        (run_dir / layout.FOLDER).mkdir(parents=True)
        self._path = layout.rank_path(run_dir, PID)
        rank = RankTrace(rank=0, pid=PID, start_ticks=start_ticks_of(PID) or 0, start_ns=T0)
        self.manifest = Manifest(
            capture="c1", run=RUN, run_dir=str(run_dir), uid=os.getuid(), params=params, attempt=1, ranks=[rank]
        )
        self.recorded = RecordedSteps()

    def look(self, *readings: tuple[int, int]) -> None:
        """Looks at the counter when it stood at (steps, end of the newest in ms after T0)."""
        for steps, at_ms in readings:
            head = layout.MAGIC, layout.VERSION, PID, 0, 0, 1, 0, 0, steps, T0, T0 + at_ms * NS_PER_MS
            self._path.write_bytes(layout._JOB.pack(*head).ljust(layout.SIZE, b"\0"))
            self.recorded.look(self.manifest, RankProcess(self.manifest, self.manifest.ranks[0]))

    def passes(self, untraced_ms: float | None) -> int:
        untraced_ns = None if untraced_ms is None else int(untraced_ms * NS_PER_MS)
        count, why = decide_passes(self.manifest, self.recorded, lambda pid: untraced_ns)
        assert (why is not None) == (count == 2)
        return count


@pytest.fixture
def params() -> CaptureParams:
    return CaptureParams(duration_ns=NS_PER_S)


@pytest.fixture
def counter(tmp_path: Path, params: CaptureParams) -> Iterator[Counter]:
    return Counter(tmp_path / RUN, params)


def test_the_recorded_step_is_that_within_the_window(counter: Counter) -> None:
    counter.look((90, -30), (100, 15), (110, 200), (130, 600), (131, 1100), (200, 1700))
    assert counter.recorded.mean_ns(PID) == 585 * NS_PER_MS // 30
    assert counter.recorded.mean_ns(PID + 1) is None


def test_steps_are_counted_where_the_window_is_counted_in_them(tmp_path: Path) -> None:
    counter = Counter(tmp_path / RUN, CaptureParams(duration_ns=None, iterations=5))
    counter.look((100, 0), (103, 60), (105, 100), (106, 500), (150, 900))
    assert counter.recorded.mean_ns(PID) == 20 * NS_PER_MS


@pytest.mark.parametrize("readings", [[], [(100, 15)], [(100, 15), (100, 15)], [(100, 900), (120, 1400)], [(0, 0)]])
def test_without_a_whole_step_in_the_window_nothing_is_known(counter: Counter, readings: list[tuple[int, int]]) -> None:
    counter.look(*readings)
    assert counter.recorded.mean_ns(PID) is None
    assert counter.passes(1.0) == 1


def test_a_second_pass_is_for_steps_that_recording_made_much_longer(counter: Counter) -> None:
    counter.look((100, 0), (110, 300))
    assert counter.passes(30 / STRETCHED) == 1, "exactly as much is not more"
    assert counter.passes(30 / STRETCHED - 0.1) == 2
    assert counter.passes(None) == 1, "not known"
    assert "3.0 times as long (30.0 ms; 10.0 ms" in str(decide_passes(counter.manifest, counter.recorded, _ten_ms)[1])


def _ten_ms(pid: int) -> int:
    return 10 * NS_PER_MS


@pytest.mark.parametrize(
    ("changed", "passes"),
    [
        ({"passes": 1}, 1),
        ({"stacks": False, "shapes": False}, 1),
        ({"stacks": False}, 2),
        ({"stacks": False, "shapes": False, "memory": True}, 2),
    ],
)
def test_nor_where_it_would_be_no_lighter_or_is_not_wanted(
    tmp_path: Path, params: CaptureParams, changed: dict[str, Any], passes: int
) -> None:
    counter = Counter(tmp_path / RUN, dataclasses.replace(params, **changed))
    counter.look((100, 0), (110, 300))
    assert counter.passes(10.0) == passes


def test_there_is_no_third(counter: Counter) -> None:
    counter.manifest = dataclasses.replace(counter.manifest, is_second=True)
    counter.look((100, 0), (110, 300))
    assert counter.passes(10.0) == 1
