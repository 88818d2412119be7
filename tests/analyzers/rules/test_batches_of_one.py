"""Passes of one input after the other, and what only looks like them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gpu_job import US, GpuJob
from reference_data import TRACES
from rule_jobs import GEMM, HALF, SQUARE

from tightship_analyzers import trace as traces
from tightship_analyzers.analysis.judge import judge_trace
from tightship_analyzers.findings.model import Finding
from tightship_analyzers.rules.kernels.batches_of_one import MIN_BYTES, MIN_CALLS, RULE
from tightship_analyzers.trace.model import Trace

STEPS = 3
SIZES = [1, 3, 1008, 1008]


def passes(
    folder: Path,
    *,
    calls: int = MIN_CALLS,
    size: int = MIN_BYTES,
    dims: Any = SIZES,
    growing: bool = False,
    trains: bool = False,
    outer: str = "",
) -> Trace:
    """Steps of passes through one encoder of two layers.

    :param growing: each pass has more kernels than the one before.
    :param trains: each pass is followed by its backward.
    :param outer: a module that calls the encoder for all passes.
    """
    job = GpuJob()
    for _ in range(STEPS):
        begun = job.now_ns
        for call in range(calls):
            job.kernel_of(20 * US, "Memcpy HtoD (Pinned -> Device)", category="gpu_memcpy", bytes=size)
            entered = job.now_ns
            job.op("aten::conv2d", dims=[dims, [1024, 3, 14, 14]], types=HALF)
            for layer in range(2 + growing * call):
                since = job.now_ns
                job.op("aten::mm", GEMM, dims=SQUARE, types=HALF)
                job.frame_of(f"nn.Module: Layer_{layer}", since)
            job.frame_of("nn.Module: Encoder_0", entered)
            if trains:
                job.op("autograd::engine::evaluate_function: MmBackward0", GEMM)
        if outer:
            job.frame_of(f"nn.Module: {outer}", begun)
        job.drain()
        job.step_of(begun)
    job.begin_step()
    return job.read(folder)


def found(trace: Trace) -> list[Finding]:
    return [one for one in judge_trace(trace).findings if one.rule == RULE.id]


@pytest.mark.parametrize("outer", ["", "Detector_0"])
def test_all_passes_but_one_may_go(tmp_path: Path, outer: str) -> None:
    [finding] = found(passes(tmp_path, calls=5, outer=outer))
    assert (finding.saving.low, finding.saving.value) == (0, 4 * 2 * GEMM[0])
    assert finding.title.startswith("Encoder runs 5 times in one step"), "not each of its layers"
    assert finding.place == "train.py:12 (train_step)"


@pytest.mark.parametrize(
    "made",
    [
        {"calls": MIN_CALLS - 1},
        {"size": MIN_BYTES - 1},
        {"dims": [4, 3, 1008, 1008]},
        {"dims": [1, 16]},
        {"growing": True},
        {"trains": True},
    ],
)
def test_what_is_no_repeated_pass_of_one(tmp_path: Path, made: dict[str, Any]) -> None:
    assert found(passes(tmp_path, **made)) == []


@pytest.mark.reference
def test_one_image_is_encoded_once_for_each_label() -> None:
    path = TRACES / "tracelens" / "h100" / "google_owlv2-large-patch14-ensemble__1016001.json.gz"
    [finding] = found(traces.open(path))
    assert (finding.saving.low, finding.share_frac) == (0, pytest.approx(0.364, abs=0.01))
    assert any("Owlv2VisionTransformer" in entry.text for entry in finding.evidence if entry.kind == "fact")
