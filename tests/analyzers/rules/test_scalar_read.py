"""The rule on host synchronization, on a GPU timeline made by hand: the cost of each read is known to the ns."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_trace import MadeTrace, at

from tightship_analyzers.analysis.judge import judge_trace
from tightship_analyzers.findings.model import Finding
from tightship_analyzers.rules.host.synchronous_scalar_read import MIN_STEP_FRAC

STEP_US = 1000


def gpu_steps(*, blocked_us: int, idle_us: int, steps: int = 4, reads: bool = True, frames: bool = True) -> MadeTrace:
    """Steps in which the host reads a scalar: it is blocked until the device is idle, and the device idles afterwards.

    A step: a kernel of STEP_US − idle_us; the read returns when it ends; the next kernel starts idle_us later.
    """
    made = MadeTrace()
    if frames:
        made.frame("train.py(10): main", 0, STEP_US * (steps + 1))
    for number in range(steps + 1):
        begin = number * STEP_US
        end_us = begin + STEP_US - idle_us
        made.launch(max(0, begin - 5), max(1, begin - 3), link=number + 1)
        made.kernel(begin, end_us, link=number + 1)
        if reads:
            made.op("aten::item", end_us - blocked_us, end_us)
            made.op("aten::_local_scalar_dense", end_us - blocked_us, end_us)
        made.launch(end_us - blocked_us, end_us, name="cudaStreamSynchronize")
        made.steps(begin + 100)
    return made


def scalar_reads(made: MadeTrace, folder: Path, rule: str = "synchronous-scalar-read") -> list[Finding]:
    said = judge_trace(made.read(folder))
    assert sum(said.summary.buckets.values()) == said.summary.window_ns
    return [finding for finding in said.findings if finding.rule == rule]


def test_a_read_costs_the_gap_that_it_leaves(tmp_path: Path) -> None:
    [finding] = scalar_reads(gpu_steps(blocked_us=400, idle_us=200), tmp_path)
    assert finding.saving.value == 200_000
    assert finding.saving.low == 200_000, "no other call can inherit the wait"
    assert finding.place == "train.py:10 (main)"
    assert "aten::item" in finding.title
    gap = finding.evidence[0]
    assert (gap.end_ns - gap.start_ns) == 200_000


def test_a_read_costs_no_more_than_the_host_was_blocked(tmp_path: Path) -> None:
    [finding] = scalar_reads(gpu_steps(blocked_us=50, idle_us=300), tmp_path)
    assert finding.saving.value == 50_000


def test_the_bucket_is_the_claim(tmp_path: Path) -> None:
    said = judge_trace(gpu_steps(blocked_us=50, idle_us=300).read(tmp_path))
    assert said.summary.buckets["host_sync"] == said.findings[0].claims.measure_ns
    assert said.summary.buckets["host"] + said.summary.buckets["unexplained"] > 0


def test_an_explicit_synchronization_is_named_as_such(tmp_path: Path) -> None:
    made = gpu_steps(blocked_us=400, idle_us=200, reads=False, frames=False)
    [finding] = scalar_reads(made, tmp_path, "explicit-synchronization")
    assert finding.place == "cudaStreamSynchronize"
    assert "Remove the synchronization" in finding.fix


def test_a_read_that_leaves_no_gap_is_no_finding(tmp_path: Path) -> None:
    idle_us = int(STEP_US * MIN_STEP_FRAC) - 1
    assert scalar_reads(gpu_steps(blocked_us=500, idle_us=idle_us), tmp_path) == []


def test_another_blocking_call_may_inherit_the_wait(tmp_path: Path) -> None:
    made = gpu_steps(blocked_us=400, idle_us=200)
    for number in range(5):
        made.frame("log.py(7): log", number * STEP_US + 100, number * STEP_US + 120)
        made.launch(number * STEP_US + 105, number * STEP_US + 115, name="cudaStreamSynchronize")
    [finding] = scalar_reads(made, tmp_path)
    assert finding.saving.low == 0 < finding.saving.value


def test_reads_on_a_cpu_wait_for_nothing(tmp_path: Path) -> None:
    made = MadeTrace()
    for number in range(4):
        made.op("aten::mm", 100 * number + 1, 100 * number + 50)
        made.op("aten::item", 100 * number + 60, 100 * number + 80)
    made.steps(100, 200, 300)
    said = judge_trace(made.read(tmp_path))
    assert "needs an accelerator" in said.not_judged["synchronous-scalar-read"].reason


def test_the_worst_gap_lies_in_its_step(tmp_path: Path) -> None:
    [finding] = scalar_reads(gpu_steps(blocked_us=400, idle_us=200), tmp_path)
    gap = finding.evidence[0]
    assert gap.step in range(4)
    assert at(0) < gap.start_ns < gap.end_ns < at(5 * STEP_US)
    assert gap.lanes[0].spans[0].name == "gemm"


@pytest.mark.parametrize("name", ["hipStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"])
def test_every_vendors_call_counts(tmp_path: Path, name: str) -> None:
    made = gpu_steps(blocked_us=400, idle_us=200)
    for event in made.events:
        if event["name"] == "cudaStreamSynchronize":
            event["name"] = name
    assert len(scalar_reads(made, tmp_path)) == 1
