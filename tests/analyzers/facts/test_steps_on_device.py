"""Steps of a device that runs far behind its host are counted where the device finishes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from device_trace import DeviceTrace
from hypothesis import given
from hypothesis import strategies as st
from reference_data import TRACES

from tightship_analyzers import trace as traces
from tightship_analyzers.analysis.judge import judge_trace
from tightship_analyzers.analysis.picked_steps import pick_step, step_names
from tightship_analyzers.analysis.rank_figures import rank_figures
from tightship_analyzers.facts.blocking.host_pace import HostPace
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.model import Saving
from tightship_analyzers.findings.savings import saving_without
from tightship_analyzers.graph.edits import Edits

STEP, WORK = 100_000, 99_000
"""Of the host and on the device, ns."""


def behind(lag_ns: int, *, steps: int = 5, unlinked: int = 0, host: tuple[int, ...] = ()) -> DeviceTrace:
    """The host launches one kernel a step; the device does it `lag_ns` later. The last mark is cut off.

    :param unlinked: kernels before them whose launch is not in the file.
    :param host: lengths of the host's steps.
    """
    made, at = DeviceTrace(), 0
    for number in range(-unlinked, 0):
        begin = lag_ns + number * STEP
        made.on_device(begin, begin + WORK, name="gemm")
    for number in range(steps + 1):
        length = host[number] if number < len(host) else STEP
        made.step(number, at, at + length)
        made.host("aten::mm", at + 100, at + 500)
        begin = lag_ns + number * STEP
        made.pair((at + 200, at + 300), (begin + 400, begin + 400 + WORK), name="gemm")
        at += length
    return made


def of(made: DeviceTrace, folder: Path) -> Steps:
    return Facts(made.read(folder))[Steps]


@pytest.mark.parametrize("lag_ns", [0, 20_000])
def test_a_device_that_is_little_behind_leaves_the_steps_to_the_host(tmp_path: Path, lag_ns: int) -> None:
    steps = of(behind(lag_ns), tmp_path)
    assert steps.lag_ns == 0
    assert steps.bounds_ns.tolist() == steps.host_bounds_ns.tolist()


@pytest.mark.parametrize("lag_ns", [40_000, 250_000])
@pytest.mark.parametrize("unlinked", [0, 2])
def test_a_device_that_is_far_behind_has_its_own_steps(tmp_path: Path, lag_ns: int, unlinked: int) -> None:
    steps = of(behind(lag_ns, unlinked=unlinked), tmp_path)
    ends = lag_ns + 400 + WORK - STEP
    assert (steps.bounds_ns - steps.host_bounds_ns)[1:].tolist() == [ends] * 5
    assert steps.durations_ns[1:].tolist() == [STEP] * 4
    assert steps.lag_ns == ends


DRAINED = 40_000


def drained() -> DeviceTrace:
    """One marked step: it begins with a wait for the work of the step before, whose launches are not in the file."""
    made = DeviceTrace()
    for begin in range(0, DRAINED, 4_000):
        made.on_device(begin, begin + 4_000, name="gemm")
    made.step(6, 0, DRAINED + STEP)
    made.host("aten::mm", 0, 500)
    made.call(1_000, DRAINED + 100, name="cudaDeviceSynchronize")
    made.pair((DRAINED + 200, DRAINED + 300), (DRAINED + 400, DRAINED + STEP), name="gemm")
    return made


def test_a_step_that_drains_the_one_before_is_as_long_as_its_own_work(tmp_path: Path) -> None:
    trace = drained().read(tmp_path)
    [took_ns] = of(drained(), tmp_path).durations_ns.tolist()
    assert took_ns == pytest.approx(STEP, rel=0.01)
    said = judge_trace(trace)
    assert said.findings == [] and said.summary.step_ns is not None and said.summary.step_ns.mean == took_ns


@pytest.mark.reference
def test_of_a_harness_that_synchronizes_each_step_the_drain_is_no_part_of_the_step() -> None:
    trace = traces.open(TRACES / "tracelens" / "h100" / "Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz")
    said = judge_trace(trace)
    assert said.summary.step_ns is not None
    assert 34_000_000 < said.summary.step_ns.mean < 36_000_000 < 47_000_000
    assert "explicit-synchronization" not in {finding.rule for finding in said.findings}


def test_steps_that_differ_on_the_host_only_are_alike(tmp_path: Path) -> None:
    """The host fills the queue, and drains it."""
    made = behind(300_000, steps=4, unlinked=3, host=(20_000, 30_000, 250_000, 100_000))
    steps = of(made, tmp_path)
    assert np.diff(steps.host_bounds_ns).tolist() == [20_000, 30_000, 250_000, 100_000]
    assert steps.durations_ns[1:].tolist() == [STEP] * 3


def test_all_that_is_said_of_them_is_of_the_device(tmp_path: Path) -> None:
    trace = behind(250_000, unlinked=3).read(tmp_path)
    facts = Facts(trace)
    steps, window = facts[Steps], facts[Window]
    assert (window.start_ns, window.end_ns) == (steps.start_ns, steps.end_ns)
    assert window.host_start_ns == steps.host_start_ns == trace.annotations_named("ProfilerStep#").start_ns[0]
    assert [name for _, name in step_names(trace, steps)] == [f"ProfilerStep#{number}" for number in range(5)]
    figures = rank_figures(facts, all_steps=True, only_steps=False).steps
    assert [step.launched for step in figures] == [1] * 5
    assert [step.device_busy_ns for step in figures][1:] == [WORK] * 4
    summary = judge_trace(trace).summary
    assert sum(summary.buckets.values()) == summary.window_ns == int(steps.durations_ns.sum())
    pick_step(facts, "#2")
    assert facts[Steps].bounds_ns.tolist() == steps.bounds_ns[2:4].tolist()
    assert facts[Steps].host_bounds_ns.tolist() == steps.host_bounds_ns[2:4].tolist()


@given(st.lists(st.integers(1, 400), min_size=3, max_size=8), st.lists(st.integers(1, 400), min_size=8, max_size=8))
def test_the_steps_of_both_are_in_order(
    tmp_path_factory: pytest.TempPathFactory, host_us: list[int], device_us: list[int]
) -> None:
    made, at, done = DeviceTrace(), 0, 0
    for number, (length, work) in enumerate(zip(host_us, device_us, strict=False)):
        made.step(number, at, at + 1000 * length)
        begin = max(done, at + 300)
        done = begin + 1000 * work
        made.pair((at + 100, at + 200), (begin, done))
        at += 1000 * length
    steps = of(made, tmp_path_factory.mktemp("made"))
    assert (steps.bounds_ns >= steps.host_bounds_ns).all()
    assert (steps.durations_ns > 0).all()
    assert steps.count == len(host_us) - 1


@pytest.mark.parametrize(("host_ns", "room_ns"), [(100_000, 0), (40_000, 60_000)])
def test_with_less_work_the_host_sets_the_pace(tmp_path: Path, host_ns: int, room_ns: int) -> None:
    made = behind(250_000, steps=8, unlinked=3, host=(host_ns,) * 9)
    facts = Facts(made.read(tmp_path))
    assert facts[Steps].durations_ns[1:].tolist() == [STEP] * 7
    linked = np.flatnonzero(facts.trace.device_events.launch >= 0)
    saving = saving_without(facts, Edits.without_device(linked, 0.1))
    assert isinstance(saving, Saving), saving
    assert saving.low <= room_ns + 100 < saving.value, "what the queue hides is no gain that lasts"
    assert facts[HostPace].step_ns == host_ns


def test_waiting_for_the_device_is_not_the_pace_of_the_host(tmp_path: Path) -> None:
    made = behind(250_000, unlinked=3)
    for number in range(6):
        made.call(number * STEP + 50_000, number * STEP + 80_000, name="cudaStreamSynchronize")
    assert Facts(made.read(tmp_path))[HostPace].step_ns == STEP - 30_000
