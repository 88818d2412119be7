"""Defects of device work on a CPU, whose operators are the device timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_trace import MadeTrace

from tightship_analyzers.analysis.judge import judge_trace
from tightship_analyzers.facts.kernels.gloo_calls import MAX_ELEMENT_BYTES
from tightship_analyzers.findings.model import Finding
from tightship_analyzers.rules.communication.tiny_collectives import GLOO_BYTES_PER_S

STEPS = 4
STEP_US = 10_000
GLOO, ISSUED_US = 200, 20
COUNT, EACH_US, LONGEST_US = 12, 200, 1200
SMALL, LARGE = [[[64, 64]]], [[[512, 512]]]


class CpuJob(MadeTrace):
    """Operators one after the other."""

    now_us = 0

    def run(
        self, name: str, took_us: int, dims: list[Any] | None = None, types: list[str] | None = None
    ) -> tuple[int, int]:
        """When it ran."""
        span = self.now_us, self.now_us + took_us
        self.op(name, *span, dims=dims, types=types)
        self.now_us = span[1]
        return span

    def end_step(self) -> None:
        """Other work until a round time, and the optimizer."""
        self.run("aten::addmm", -self.now_us % STEP_US - 1)
        self.now_us += 1
        self.steps(self.now_us)

    def reduce(self, waits_us: int, dims: list[list[list[int]]] | None, *, computes: bool = False) -> None:
        """An all-reduce of gloo: issued, carried out by another thread, and waited for, or hidden by work."""
        self.op("c10d::allreduce_", self.now_us, self.now_us + ISSUED_US, dims=dims, types=["TensorList"])
        begun = self.now_us = self.now_us + ISSUED_US
        self.mark("gloo:all_reduce", begun, begun + waits_us, thread=GLOO)
        if computes:
            self.run("aten::addmm", waits_us)
        self.now_us = begun + waits_us

    def found(self, rule: str, folder: Path) -> list[Finding]:
        verdict = judge_trace(self.read(folder))
        assert rule not in verdict.not_judged
        return [finding for finding in verdict.findings if finding.rule == rule]


SCORES, HEADS, VALUES, GIVEN = [2, 4, 512, 512], [8, 512, 16], [8, 512, 512], [8, 16, 512]


def attention(job: CpuJob, *, scores: list[int] = SCORES, drops: bool = False) -> None:
    """The scores' own work takes 3 ms of a step, the products 2 ms."""
    job.run("aten::bmm", 1000, [HEADS, GIVEN])
    job.run("aten::div", 500, [scores, []])
    job.op("aten::masked_fill", job.now_us, job.now_us + 1000, dims=[scores, [512, 512], []])
    job.run("aten::clone", 400, [scores, []])
    job.run("aten::masked_fill_", 600, [scores, [512, 512], []])
    job.run("aten::_softmax", 1500, [scores, [], []])
    if drops:
        job.run("aten::bernoulli_", 100, [scores, [], []])
    job.op("aten::matmul", job.now_us, job.now_us + 1000, dims=[scores, [2, 4, 512, 16]])
    job.run("aten::bmm", 1000, [VALUES, HEADS])


def steps(job: CpuJob, **how: object) -> CpuJob:
    job.end_step()
    for _ in range(STEPS):
        attention(job, **how)  # type: ignore[arg-type]
        job.end_step()
    return job


def test_work_on_materialized_scores_counts_once_and_without_the_products(tmp_path: Path) -> None:
    [finding] = steps(CpuJob()).found("unfused-attention", tmp_path)
    assert finding.saving.value == pytest.approx(3_000_000, rel=0.01)
    assert finding.saving.low == pytest.approx(1_500_000, rel=0.01)
    assert finding.saving.high == pytest.approx(5_000_000, rel=0.01)


def test_without_a_fused_kernel_there_is_no_finding(tmp_path: Path) -> None:
    assert not steps(CpuJob(), drops=True).found("unfused-attention", tmp_path)


def test_a_softmax_of_other_sizes_than_the_products_is_none_of_attention(tmp_path: Path) -> None:
    assert not steps(CpuJob(), scores=[2, 4, 512, 256]).found("unfused-attention", tmp_path)


PARAMETERS, UPDATE = 40, ("aten::lerp_", "aten::mul_", "aten::addcmul_", "aten::sqrt", "aten::div", "aten::addcdiv_")


@pytest.mark.parametrize(("optimizer", "counts"), [("Adam", True), ("LBFGS", False)])
def test_the_update_after_a_closure_is_judged_without_the_closure(tmp_path: Path, optimizer: str, counts: bool) -> None:
    job = CpuJob()
    for _ in range(STEPS + 1):
        begun = job.now_us
        job.run("aten::mm", 2000)
        job.run("autograd::engine::evaluate_function: MmBackward0", 3000)
        for _ in range(PARAMETERS):
            for operator in UPDATE:
                job.run(operator, 10)
        job.mark(f"Optimizer.step#{optimizer}.step", begun, job.now_us)
        job.run("aten::detach", 100)
    found = job.found("single-tensor-optimizer", tmp_path)
    assert len(found) == counts
    for finding in found:
        assert finding.saving.value == PARAMETERS * (len(UPDATE) - 1) * 10_000
        assert finding.saving.high == PARAMETERS * len(UPDATE) * 10_000


def reducing(dims: list[list[list[int]]] | None, *, computes: bool = False) -> CpuJob:
    """Twelve all-reduces in a step, the first of which waits for a slower rank."""
    job = CpuJob()
    job.end_step()
    for _ in range(STEPS):
        for number in range(COUNT):
            job.reduce(EACH_US if number else LONGEST_US, dims, computes=computes)
        job.end_step()
    return job


def test_small_collectives_of_gloo_cost_all_but_the_longest(tmp_path: Path) -> None:
    [finding] = reducing(SMALL).found("tiny-collectives", tmp_path)
    carried_ns = round(COUNT * 64 * 64 * MAX_ELEMENT_BYTES / GLOO_BYTES_PER_S * 1e9)
    expected_ns = ((COUNT - 1) * EACH_US + COUNT * ISSUED_US) * 1000 - carried_ns
    assert finding.saving.value == pytest.approx(expected_ns, rel=0.01)
    assert finding.saving.low == 0, "all of one size: nothing shows that larger ones move a byte faster"
    assert finding.saving.high == (LONGEST_US + (COUNT - 1) * EACH_US + COUNT * ISSUED_US) * 1000


@pytest.mark.parametrize(("dims", "computes"), [(LARGE, False), (SMALL, True)])
def test_large_and_hidden_collectives_of_gloo_are_left_alone(
    tmp_path: Path, dims: list[list[list[int]]], computes: bool
) -> None:
    job = reducing(dims, computes=computes)
    found = job.found("tiny-collectives", tmp_path)
    assert [finding.saving.value for finding in found if finding.saving.value > COUNT * ISSUED_US * 1000] == []


def test_collectives_of_gloo_without_sizes_are_not_judged(tmp_path: Path) -> None:
    verdict = judge_trace(reducing(None).read(tmp_path))
    assert "record_shapes" in verdict.not_judged["tiny-collectives"].reason


@pytest.mark.parametrize(("back", "counts"), [([8, 256, 256], True), ([8, 256, 128], False)])
def test_casts_there_and_back_are_operators_on_a_cpu(tmp_path: Path, back: list[int], counts: bool) -> None:
    job, wide = CpuJob(), [8, 256, 256]
    job.end_step()
    for _ in range(STEPS):
        job.run("aten::copy_", 600, [wide, wide, []], ["float", "c10::BFloat16", "Scalar"])
        job.run("aten::native_layer_norm", 1000, [wide], ["float"])
        job.run("aten::copy_", 200, [back, back, []], ["c10::BFloat16", "float", "Scalar"])
        job.op("aten::_to_copy", job.now_us, job.now_us)
        job.end_step()
    found = job.found("dtype-ping-pong", tmp_path)
    assert [(one.saving.low, one.saving.value) for one in found] == ([(0, 800_000)] if counts else [])
    assert all(one.saving.high == 800_000 + 1_000_000 // 2 for one in found)


@pytest.mark.parametrize("zeroed", [True, False])
def test_filling_gradients_and_the_first_addition_to_each_go_on_a_cpu(tmp_path: Path, zeroed: bool) -> None:
    """Gradients of two backward passes are added up."""
    gradients, fill_us, add_us, node = 5, 20, 30, "torch::autograd::AccumulateGrad"
    job = CpuJob()
    job.end_step()
    for _ in range(STEPS):
        begun = job.now_us
        for _ in range(gradients if zeroed else 0):
            job.run("aten::zero_", fill_us)
        job.mark("Optimizer.zero_grad#SGD.zero_grad", begun, job.now_us + 1)
        job.now_us += 1
        for _ in range(2 * gradients):
            job.op(node, job.now_us, job.now_us + add_us + 1)
            job.run("aten::add_", add_us)
            job.now_us += 1
        job.end_step()
    found = job.found("zero-grad-memset", tmp_path)
    assert len(found) == zeroed
    for finding in found:
        assert finding.saving.value == gradients * (fill_us + add_us) * 1000
        assert finding.saving.low == 0 and finding.saving.high == 2 * finding.saving.value


def test_elementwise_operators_of_a_cpu_are_not_called_clean(tmp_path: Path) -> None:
    verdict = judge_trace(steps(CpuJob()).read(tmp_path))
    assert "accelerator" in verdict.not_judged["unfused-elementwise"].reason
