"""The recordings that defects are put into: made ones, our own, and reference traces."""

from __future__ import annotations

import random
from pathlib import Path

from gpu_job import LAUNCH_NS, US, GpuJob
from reference_data import GIVEN, TRACES
from rule_jobs import GEMM, HALF, SQUARE

OWN = Path(__file__).parents[1] / "data" / "traces"
OWN_NAMES = ("healthy", "fed", "fused", "layers")
"""Recordings on a CPU in which nothing is wrong."""

MADE = ("NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-32GB", "NVIDIA H100 80GB HBM3", "AMD Instinct MI250")
"""Devices of made jobs that keep them busy, except for a few short moments in each step."""

SMALL = (
    "param/dlrm_8rank/worker0_step_12.1694128201545.pt.trace.json.gz",
    "param/dlrm_8rank/worker3_step_12.1694128201557.pt.trace.json.gz",
    "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
)
LARGE = (
    "hta/nccl_parser_config/nccl_data.json.gz",
    "param/dlrm_8rank/worker7_step_12.1694128201553.pt.trace.json.gz",
    "tracelens/mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "hta/negative_queue_length_values_check/rank0.json.gz",
    "hta/trace_diff/control/control.json.gz",
    "hta/timeline_analysis/sampled_rank-0.json.gz",
    "tracelens/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz",
)


def own(folder: Path, rng: random.Random, *, made: int = 1) -> list[Path]:
    """What every checkout holds.

    :param made: jobs made for each device.
    """
    paths = [OWN / f"{name}.json.gz" for name in OWN_NAMES]
    for device in MADE:
        for number in range(made):
            path = folder / f"made {device} {number + 1}.json"
            path.write_bytes(_busy(device, rng).text())
            paths.append(path)
    return paths


def _busy(device: str, rng: random.Random) -> GpuJob:
    """Steps of products that keep the device busy except for a few moments; how many, and how long, is drawn."""
    job = GpuJob(device=device, stacks=rng.random() < 0.5)
    steps, moments, products = rng.randrange(2, 7), rng.randrange(3, 7), rng.randrange(2, 6)
    kernel = (rng.randrange(200, 900) * US, GEMM[1])
    for _ in range(steps):
        begun = job.now_ns
        job.pause(US)
        for _ in range(moments):
            for _ in range(products):
                # The host needs as long for an operator as the device for its kernel.
                job.op("aten::mm", kernel, dims=SQUARE, types=HALF, grid=[1024, 1, 1])
                job.pause(kernel[0] - LAUNCH_NS - 2 * US)
            job.pause(10 * US)
        job.step_of(begun)
    return job


def reference(names: tuple[str, ...]) -> list[Path]:
    """Those of the names; none where TIGHTSHIP_REFERENCE is not set."""
    return [TRACES / name for name in names] if GIVEN else []
