"""Which kernels count as slow, which are another rule's, and what the sizes of a slow one show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_job import MS, US, GpuJob
from reference_data import TRACES
from rule_jobs import HALF, STEPS, work

from tightship_analyzers import hardware
from tightship_analyzers import trace as traces
from tightship_analyzers.facts.kernels.kernel_ops import alone
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.roofline.slow_kernels import SLOW_FRAC, SLOW_PRODUCT_FRAC, SlowKernels
from tightship_analyzers.findings.kernel_sizes import advice_on
from tightship_analyzers.findings.model import Finding
from tightship_analyzers.rules.kernels.slow_kernel import MIN_STEP_FRAC, RULE

BF16 = HALF[0]
GOOD = "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_align8"
SINGLE = ["float", "float"]
SCORES = [[16, 2048, 2048], [], []]


def judged(job: GpuJob, folder: Path) -> list[Finding]:
    facts = Facts(job.read(folder))
    for need in RULE.needs:
        facts[need]
    return list(RULE.judge(facts))  # type: ignore[arg-type]


def job_with(put: Callable[[GpuJob], None], device: str = GpuJob().device) -> GpuJob:
    job = GpuJob(device=device)
    for _ in range(STEPS):
        begun = job.now_ns
        work(job, 2)
        put(job)
        job.drain()
        job.step_of(begun)
    return job


def product(m: int, k: int, n: int, *, types: list[str] = HALF, ns: int = MS, kernel: str = GOOD, **more: Any) -> Any:
    return lambda job: job.op("aten::mm", (ns, kernel), dims=[[m, k], [k, n]], types=types, **more)


def texts(finding: Finding) -> str:
    return " ".join(getattr(entry, "text", "") for entry in finding.evidence)


@pytest.mark.parametrize(("border", "kernels", "more"), [(SLOW_FRAC, 1, 2), (SLOW_PRODUCT_FRAC, 3, 0)])
def test_the_border_is_twice_what_the_work_needs_and_less_where_much_can_be_gained(
    tmp_path: Path, border: float, kernels: int, more: int
) -> None:
    device = hardware.find(GpuJob().device)
    assert device is not None
    size = 2048
    needed_ns = 2 * size**3 / (device.reached_flops("bf16") or 0) * 1e9 + 5 * US
    for factor, slow in ((0.95, False), (1.05, True)):
        ns = round(needed_ns / border * factor)

        def put(job: GpuJob, ns: int = ns) -> None:
            work(job, more)
            for _ in range(kernels):
                product(size, size, size, ns=ns)(job)

        job = job_with(put)
        found = judged(job, tmp_path)
        assert bool(found) is slow
        if found:
            assert found[0].saving.low == 0
            assert found[0].saving.value == pytest.approx(kernels * (ns - needed_ns), rel=0.01)


def unfused(job: GpuJob) -> None:
    job.op("aten::bmm", (MS, GOOD), dims=[[16, 2048, 64], [16, 64, 2048]], types=HALF)
    job.op("aten::_softmax", (MS, "softmax_warp"), dims=SCORES, types=[BF16, "", ""])
    job.op("aten::bmm", (MS, GOOD), dims=[[16, 2048, 2048], [16, 2048, 64]], types=HALF)


def beside_another(job: GpuJob) -> None:
    job.kernel_of(MS, "other", stream=9)
    product(1024, 1024, 1024)(job)


EXPLAINED: dict[str, Callable[[GpuJob], None]] = {
    "no sizes": lambda job: job.op("aten::mm", (MS, GOOD)),
    "no known operator": lambda job: job.op("mine::product", (MS, "mine"), dims=[[64, 64], [64, 64]], types=HALF),
    "no rate for its type": product(1024, 1024, 1024, types=["c10::Float8_e4m3fn"] * 2),
    "unaligned": product(1023, 1023, 1023, kernel="cutlass_align1"),
    "float32": product(1024, 1024, 1024, types=SINGLE, kernel="ampere_sgemm_128x64_nn"),
    "a small grid": product(1024, 1024, 1024, grid=[8, 1, 1]),
    "an attention that is spelt out": unfused,
    "work beside it": beside_another,
    "elementwise": lambda job: job.op("aten::mul", (MS, "elementwise_kernel"), dims=SCORES, types=[BF16, "", ""]),
    "short kernels": lambda job: [product(64, 64, 64, ns=9 * US)(job) for _ in range(50)] and None,
    "a small share": product(1024, 1024, 1024, ns=round(MIN_STEP_FRAC * 800 * US)),
}


@pytest.mark.parametrize("why", EXPLAINED)
def test_what_is_unknown_or_explained_is_not_called_slow(tmp_path: Path, why: str) -> None:
    assert judged(job_with(EXPLAINED[why]), tmp_path) == []


def convolution(data: list[int], weight: list[int], ns: int = 3 * MS) -> Callable[[GpuJob], None]:
    output = [data[0], weight[0], *data[2:]]
    return lambda job: job.op(
        "aten::convolution_backward", (ns, "wgrad"), dims=[output, data, weight], types=[BF16] * 3
    )


def attention(job: GpuJob) -> None:
    job.op("aten::_flash_attention_forward", (MS, "flash_fwd"), dims=[[4, 1024, 8, 64]] * 3, types=[BF16] * 3)


def grouped(job: GpuJob) -> None:
    dims, types = [[256, 1024], [64, 1024, 2048], [64]], [*HALF, "int"]
    job.op("aten::_grouped_mm", (2 * MS, "grouped_gemm"), dims=dims, types=types)


REASONS: dict[str, tuple[Callable[[GpuJob], None], str]] = {
    "few rows": (product(4, 8192, 8192), "4 rows only share the reading"),
    "few tiles": (product(256, 8192, 256), "4 tiles of 128×128 for 108 multiprocessors"),
    "a short inner size": (product(4096, 32, 4096), "a short inner size"),
    "large": (product(2048, 2048, 2048), "(2048×2048) × (2048×2048)"),
    "TF32": (product(2048, 2048, 2048, types=SINGLE, kernel="s1688gemm_tf32_align4"), "(2048×2048) × (2048×2048)"),
    "experts": (grouped, "4 rows for each of 64 groups on average"),
    "attention": (attention, "1024 queries and 1024 keys, 8 heads of 64, 4 of them at once"),
    "depthwise": (convolution([32, 256, 28, 28], [256, 1, 3, 3]), "depthwise"),
    "few channels": (convolution([32, 3, 224, 224], [64, 3, 7, 7]), "3 channels only"),
    "a small picture": (convolution([2, 256, 7, 7], [256, 256, 3, 3]), "2 tiles of 128×128 for 108 multiprocessors"),
    "norm": (
        lambda job: job.op("aten::native_layer_norm", (MS, "vectorized_layer_norm"), dims=[[8192, 1024]], types=[BF16]),
        "8192×1024",
    ),
}


@pytest.mark.parametrize("reason", REASONS)
def test_sizes_show_the_reason(tmp_path: Path, reason: str) -> None:
    put, expected = REASONS[reason]
    [finding] = judged(job_with(put), tmp_path)
    assert expected in texts(finding)
    [change] = [entry for entry in finding.evidence if entry.kind == "change"]
    assert change.before != change.after


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "FlashAttention-3"),
        ("AMD Instinct MI300X", "AITER"),
        ("NVIDIA A100-SXM4-80GB", "other backends"),
    ],
)
def test_the_device_decides_which_kernel_to_try(tmp_path: Path, device: str, expected: str) -> None:
    facts = Facts(job_with(attention, device).read(tmp_path))
    known = hardware.find(device)
    assert known is not None
    [kernel] = [one for one in facts[SlowKernels].kernels if one.op != "aten::mm"]
    assert expected in advice_on(kernel, known).fix


def test_kernels_of_one_place_are_one_finding(tmp_path: Path) -> None:
    def both(job: GpuJob) -> None:
        attention(job)
        product(2048, 2048, 2048, ns=2 * MS)(job)

    [finding] = judged(job_with(both), tmp_path)
    figures = [entry.text for entry in finding.evidence if entry.kind == "fact" and "can be reached" in entry.text]
    assert [text.split(":")[0] for text in figures] == [GOOD, "flash_fwd"], "what could gain most comes first"
    assert "matrix products" in finding.title


def test_kernels_of_other_devices_run_beside_nothing(tmp_path: Path) -> None:
    job = GpuJob()
    for start_ns, end_ns, device in ((10, 30, 0), (20, 40, 1), (30, 50, 0), (45, 60, 0), (70, 80, 1)):
        job.on_device(start_ns * US, end_ns * US, device=device)
    events = job.read(tmp_path).device_events
    assert np.flatnonzero(alone(events)).tolist() == [0, 1, 4]


@pytest.mark.reference
@pytest.mark.parametrize(
    ("name", "slow"),
    [
        ("h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", "flash_fwd_kernel"),
        ("mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", "attn_fwd"),
        ("h100/google_owlv2-large-patch14-ensemble__1016001.json.gz", None),
        ("h100/facebook_timesformer-base-finetuned-k400__1016002.json.gz", None),
        ("inference/xdit_sd_3.5/profile_trace_rank_0.json.gz", None),
    ],
)
def test_of_real_traces(name: str, slow: str | None) -> None:
    found = list(RULE.judge(Facts(traces.open(TRACES / "tracelens" / name))))  # type: ignore[arg-type]
    assert len(found) == (slow is not None)
    assert all(str(slow) in texts(finding) for finding in found)
