"""Gradients cleared one by one cost the device the fills, and waiting for the host to launch them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gpu_job import MAIN, PLACE, US, GpuJob
from reference_data import TRACES
from rule_jobs import STEPS, work

from tightship_analyzers import trace as traces
from tightship_analyzers.analysis.judge import judge_trace
from tightship_analyzers.findings.model import Finding
from tightship_platform.vocabulary import Method

FILLS, FILL_NS, EACH_NS = 40, 2 * US, 50 * US
LAUNCHING_NS = FILLS * EACH_NS

ANNOTATION = "Optimizer.zero_grad#SGD.zero_grad"
FRAME = "torch/nn/modules/module.py(2510): zero_grad"


def found(folder: Path, around: Callable[[GpuJob, int], None], *, queued: bool = False) -> list[Finding]:
    """Steps that compute, zero FILLS gradients one by one, and compute; `queued`: the device has work meanwhile."""
    job = GpuJob()
    for _ in range(STEPS):
        begun = job.now_ns
        work(job)
        if queued:
            job.kernel_of(2 * LAUNCHING_NS)
        else:
            job.drain()
        entered = job.now_ns
        for _ in range(FILLS):
            job.pause(EACH_NS - 5 * US)
            job.kernel_of(FILL_NS, "vectorized_elementwise_kernel<FillFunctor>")
        around(job, entered)
        work(job)
        job.drain()
        job.step_of(begun)
    job.begin_step()
    findings = judge_trace(job.read(folder)).findings
    return [finding for finding in findings if finding.rule == "zero-grad-memset"]


def annotated(job: GpuJob, since: int) -> None:
    job.host(ANNOTATION, since, job.now_ns, category="user_annotation", thread=MAIN)


def of_a_module(job: GpuJob, since: int) -> None:
    job.frame_of(FRAME, since)


@pytest.mark.parametrize("around", [annotated, of_a_module])
def test_the_time_to_launch_the_fills_comes_back(tmp_path: Path, around: Callable[[GpuJob, int], None]) -> None:
    [finding] = found(tmp_path, around)
    assert finding.saving.method is Method.SIMULATED
    assert finding.saving.value == pytest.approx(LAUNCHING_NS, rel=0.05)
    assert finding.saving.low < finding.saving.value
    assert finding.place == PLACE


def test_a_device_that_has_work_meanwhile_saves_the_fills_only(tmp_path: Path) -> None:
    for finding in found(tmp_path, annotated, queued=True):
        assert finding.saving.high <= 2 * FILLS * FILL_NS + US


def test_fills_elsewhere_are_not_those_of_zero_grad(tmp_path: Path) -> None:
    assert found(tmp_path, lambda job, since: job.frame_of("model.py(3): reset", since)) == []


@pytest.mark.reference
@pytest.mark.parametrize(("workers", "least_ns", "most_ns"), [(0, 8_000_000, 12_500_000), (4, 7_000_000, 9_500_000)])
def test_of_the_tutorial_s_job_zeroing_takes_as_long_as_was_read(workers: int, least_ns: int, most_ns: int) -> None:
    path = TRACES / "kineto_pair" / f"resnet50_num_workers_{workers}.pt.trace.json.gz"
    [finding] = [one for one in judge_trace(traces.open(path)).findings if one.rule == "zero-grad-memset"]
    assert least_ns <= finding.saving.value <= most_ns
