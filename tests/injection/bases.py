"""The recordings that defects are put into: made ones, our own, and the reference traces where they are at hand."""

from __future__ import annotations

from pathlib import Path

from gpu_job import LAUNCH_NS, US, GpuJob
from rule_jobs import GEMM, HALF, SQUARE, STEPS
from trace_files import REFERENCE

OWN = Path(__file__).parents[1] / "data" / "traces"
OWN_NAMES = ("healthy", "fed", "fused", "layers")
"""Recordings on a CPU in which nothing is wrong."""

MADE = ("NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-32GB", "NVIDIA H100 80GB HBM3")
"""Devices of made jobs that keep them busy, but for three short moments in each step."""

SMALL = (
    "param/dlrm_8rank/worker0_step_12.1694128201545.pt.trace.json.gz",
    "param/dlrm_8rank/worker3_step_12.1694128201557.pt.trace.json.gz",
    "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "hta/nccl_parser_config/nccl_data.json.gz",
)
LARGE = (
    "param/dlrm_8rank/worker7_step_12.1694128201553.pt.trace.json.gz",
    "tracelens/mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "hta/negative_queue_length_values_check/rank0.json.gz",
    "hta/trace_diff/control/control.json.gz",
    "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
)


def own(folder: Path) -> list[Path]:
    """What every checkout holds."""
    paths = [OWN / f"{name}.json.gz" for name in OWN_NAMES]
    for device in MADE:
        path = folder / f"made {device}.json"
        path.write_bytes(_busy(device).text())
        paths.append(path)
    return paths


def _busy(device: str) -> GpuJob:
    job = GpuJob(device=device)
    for _ in range(STEPS):
        begun = job.now_ns
        job.pause(US)
        for _ in range(3):
            for _ in range(5):
                # The host needs as long for an operator as the device for its kernel.
                job.op("aten::mm", GEMM, dims=SQUARE, types=HALF)
                job.pause(GEMM[0] - LAUNCH_NS - 2 * US)
            job.pause(10 * US)
        job.step_of(begun)
    return job


def reference(names: tuple[str, ...]) -> list[Path]:
    """Those that are there."""
    return [REFERENCE / name for name in names if (REFERENCE / name).exists()]
