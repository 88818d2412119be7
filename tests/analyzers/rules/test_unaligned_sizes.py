"""Which half-precision products count as unaligned, and what padding them could give back at most."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_job import MS, US, GpuJob
from rule_jobs import GEMM, HALF, STEPS, work

from tightship_analyzers import hardware
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.findings.model import Finding
from tightship_analyzers.rules.kernels.unaligned_half_dims import HALF_BYTES, MIN_LEFT_FRAC, RULE

SLOW_NS = 3 * MS
ODD_M, ODD_K, ODD_N = (1023, 1024, 1024), (1024, 1023, 1024), (1024, 1024, 1023)
HOPPER = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
WHOLE = "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8"
SINGLY = "cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_tn_align1"
MUTE = "Cijk_Ailk_Bljk_BBS_BH_MT128x128"


def product(job: GpuJob, batch: int, sizes: tuple[int, int, int], kernel: str, duration_ns: int = SLOW_NS) -> None:
    m, k, n = sizes
    dims = [[batch, m, k], [batch, k, n]] if batch > 1 else [[m, k], [k, n]]
    job.op("aten::bmm" if batch > 1 else "aten::mm", (duration_ns, kernel), dims=dims, types=HALF)


def judged(job: GpuJob, folder: Path) -> list[Finding]:
    facts = Facts(job.read(folder))
    for need in RULE.needs:
        facts[need]
    return list(RULE.judge(facts))  # type: ignore[arg-type]


def findings(folder: Path, sizes: tuple[int, int, int], kernel: str) -> list[Finding]:
    job = GpuJob()
    for _ in range(STEPS):
        begun = job.now_ns
        work(job)
        product(job, 1, sizes, kernel)
        job.drain()
        job.step_of(begun)
    return judged(job, folder)


@pytest.mark.parametrize(
    ("sizes", "kernel", "counts"),
    [
        (ODD_K, SINGLY, True),
        (ODD_N, SINGLY, True),
        (ODD_M, SINGLY, True),  # the left factor lies transposed
        (ODD_K, MUTE, True),
        (ODD_N, MUTE, True),
        (ODD_M, MUTE, False),
        (ODD_M, HOPPER, False),
        (ODD_K, WHOLE, False),
        ((1024, 1024, 1024), SINGLY, False),
    ],
)
def test_what_the_kernel_reads_at_once_decides(
    tmp_path: Path, sizes: tuple[int, int, int], kernel: str, counts: bool
) -> None:
    found = findings(tmp_path, sizes, kernel)
    assert bool(found) is counts
    if found:
        assert f"{STEPS} products" in found[0].evidence[1].text


def test_padding_cannot_beat_the_memory(tmp_path: Path) -> None:
    """A product of long, thin factors: at the rate of a square one it would be done before its result is written."""
    device = hardware.find(GpuJob().device)
    assert device is not None
    m, k, n, batch = 4095, 64, 4095, 32
    job = GpuJob()
    for _ in range(STEPS):
        begun = job.now_ns
        product(job, 1, (4096, 4096, 2048), WHOLE, 200 * US)
        product(job, batch, (m, k, n), SINGLY)
        job.drain()
        job.step_of(begun)
    [finding] = judged(job, tmp_path)
    moved = HALF_BYTES * batch * ((m + 1) * k + k * (n + 1) + (m + 1) * (n + 1))
    least_ns = moved / device.memory_bytes_per_s * 1e9
    assert least_ns > max(200 * US, MIN_LEFT_FRAC * SLOW_NS)
    assert finding.saving.value == pytest.approx(SLOW_NS - least_ns, rel=0.01)


def test_those_of_an_unfused_attention_belong_to_its_rule(tmp_path: Path) -> None:
    """Their sizes are counts of tokens."""
    job = GpuJob()
    for _ in range(STEPS):
        begun = job.now_ns
        work(job, 1)
        product(job, 16, (513, 64, 513), SINGLY)
        job.op("aten::_softmax", (300 * US, "softmax_warp"), dims=[[16, 513, 513], [], []], types=[HALF[0], "", ""])
        product(job, 16, (513, 513, 64), SINGLY)
        product(job, 1, ODD_K, SINGLY)
        job.op("aten::mm", GEMM, dims=[[1024, 1024], [1024, 1024]], types=HALF)
        job.drain()
        job.step_of(begun)
    [finding] = judged(job, tmp_path)
    texts = [getattr(entry, "text", "") for entry in finding.evidence]
    assert any(text.startswith(f"{STEPS} products") for text in texts)
