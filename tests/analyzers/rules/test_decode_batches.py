"""Which steps of a server decode only, and what steps of more requests could save."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_job import MS, US, GpuJob
from reference_data import TRACES

from tightship_analyzers import hardware
from tightship_analyzers import trace as traces
from tightship_analyzers.analysis.judge import judge_trace
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.decode_steps import DecodeSteps
from tightship_analyzers.findings.model import Finding
from tightship_analyzers.rules.kernels.small_decode_batch import RULE, worth_tokens

GEMM = (400 * US, "Cijk_Alik_Bljk_BBS")
VLLM = "execute_context_0(0)_generation_8(8)"


def serving(name: str, *, times: int = 4, pause_ns: int = 0) -> GpuJob:
    """Steps of two products and an attention, with the host's pause before each."""
    job = GpuJob(device="NVIDIA H100 80GB HBM3")
    for _ in range(times):
        begun = job.now_ns
        for kernel in (GEMM, (200 * US, "paged_attention_v2_kernel"), GEMM):
            job.op("vllm::op", kernel)
            job.pause(pause_ns)
        job.host(name, begun, job.now_ns, category="user_annotation")
        job.drain()
        job.step_of(begun)
    return job


def judged(job: GpuJob, folder: Path) -> list[Finding]:
    facts = Facts(job.read(folder))
    if facts.missing(RULE.needs) is not None:
        return []
    return list(RULE.judge(facts))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        (VLLM, 8),
        ("execute_context_0(0)_generation_8(24)", 24),
        ("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)", 32),
        ("step[DECODE bs=32]", 32),
        ("decode[bs=32 tok=64 d=32 spec=1]", 64),
        ("eager_decode[bs=32 tok=32 d=32]", 32),
        ("execute_context_1(512)_generation_8(8)", None),
        ("execute_8192_context_9(sq8155sk8430)_generation_37(sq37sk34489)", None),
        ("step[EXTEND bs=17 toks=8192]", None),
        ("step[MIXED bs=2]", None),
        ("draft step[DECODE bs=2]", None),
        ("prefill[bs=2 tok=512 p=2]", None),
        ("execute_new_0_cached_8", None),
        ("capture_32_FULL", None),
    ],
)
def test_what_decodes_only(tmp_path: Path, name: str, tokens: int | None) -> None:
    found = Facts(serving(name).read(tmp_path)).find(DecodeSteps)
    assert (None if found is None else set(found.tokens.tolist())) == (None if tokens is None else {tokens})


def test_half_of_what_does_not_grow_with_the_batch(tmp_path: Path) -> None:
    [finding] = judged(serving(VLLM), tmp_path)
    assert (finding.saving.low, finding.saving.value) == (0, GEMM[0])
    assert "8 tokens" in finding.title
    rate = 4 * 8 / (4 * (2 * GEMM[0] + 200 * US)) * 1e9
    assert f"{rate:,.0f} tokens/s" in finding.evidence[0].text  # type: ignore[union-attr]


def test_marks_of_parts_of_a_step_give_no_rate(tmp_path: Path) -> None:
    [finding] = judged(serving("step[DECODE bs=8]"), tmp_path)
    assert "tokens/s" not in finding.evidence[0].text  # type: ignore[union-attr]


def test_from_half_of_what_the_device_needs_on_nothing_is_said(tmp_path: Path) -> None:
    device = hardware.find("NVIDIA H100 80GB HBM3")
    assert device is not None
    most = worth_tokens(device)
    assert most is not None and 290 < most < 300
    for tokens, small in ((int(most / 2), True), (int(most / 2) + 1, False)):
        name = f"execute_context_0(0)_generation_{tokens}({tokens})"
        assert bool(judged(serving(name), tmp_path)) is small


def test_steps_that_wait_for_the_host_are_no_case_for_more_requests(tmp_path: Path) -> None:
    assert judged(serving(VLLM, pause_ns=MS), tmp_path) == []


def unmarked(rows: int, *, pause_ns: int = 0, kind: str = "c10::BFloat16", trains: bool = False) -> GpuJob:
    """Products of so many rows with weights of 32 MiB, in one loop after another."""
    job = GpuJob(device="NVIDIA H100 80GB HBM3")
    for _ in range(4):
        begun = job.now_ns
        for inner, columns in ((4096, 4096), (4096, 4096)):
            job.op("aten::mm", GEMM, dims=[[rows, inner], [inner, columns]], types=[kind, kind])
            job.pause(pause_ns)
        if trains:
            job.op("autograd::engine::evaluate_function: MmBackward0", GEMM)
        job.drain()
        job.step_of(begun)
    return job


@pytest.mark.parametrize("rows", [1, 16])
def test_products_of_few_rows_are_found_without_marks(tmp_path: Path, rows: int) -> None:
    [finding] = judged(unmarked(rows), tmp_path)
    assert (finding.saving.low, finding.saving.value) == (0, GEMM[0])
    assert f"for {rows} row" in finding.title
    assert finding.place == "train.py:12 (train_step)"


@pytest.mark.parametrize(
    "job",
    [
        unmarked(256),
        unmarked(8, pause_ns=MS),
        unmarked(8, kind="float"),
        unmarked(8, trains=True),
    ],
)
def test_what_computes_waits_or_trains_is_no_small_batch(tmp_path: Path, job: GpuJob) -> None:
    assert judged(job, tmp_path) == []


def test_an_outer_product_reads_no_weights(tmp_path: Path) -> None:
    job = GpuJob(device="NVIDIA H100 80GB HBM3")
    for _ in range(4):
        begun = job.now_ns
        job.op("aten::mm", GEMM, dims=[[32, 1], [1, 559]], types=["c10::BFloat16"] * 2)
        job.drain()
        job.step_of(begun)
    assert judged(job, tmp_path) == []


@pytest.mark.reference
@pytest.mark.parametrize(("folder", "small"), [("vllm_decode_full", True), ("vllm_prefilldecode_piecewise", False)])
def test_of_real_traces(folder: str, small: bool) -> None:
    path = TRACES / "tracelens" / "inference" / folder / "graph_execution.json.gz"
    found = [one for one in judge_trace(traces.open(path)).findings if one.rule == RULE.id]
    assert len(found) == small
    if found:
        assert (found[0].saving.low, found[0].share_frac) == (0, pytest.approx(0.46, abs=0.02))
