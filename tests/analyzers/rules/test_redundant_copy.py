"""Copies within device memory: which of them only move a tensor to where something expects it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gpu_job import US, GpuJob
from rule_jobs import STEPS, work

from tightship_analyzers.analysis.judge import judge_trace
from tightship_analyzers.facts.kernels.staged_copies import Reason, StagedCopies
from tightship_analyzers.facts.memo import Facts

COPY = (60 * US, "Memcpy DtoD (Device -> Device)")
NCCL = "ncclDevKernel_AllReduce_Sum_f32"


def copy(job: GpuJob, *around: str, host_ns: int = 2 * US) -> None:
    """A copy within these operators, the outermost first."""
    begun = job.now_ns
    job.op("aten::copy_", COPY, category="gpu_memcpy", bytes=4 << 20, host_ns=host_ns)
    for name in reversed(around):
        job.host(name, begun, job.now_ns)


def cloned_gradient(job: GpuJob) -> None:
    """What compiled functional collectives of one parameter each look like."""
    begun = job.now_ns
    for _ in range(3):
        copy(job, "aten::clone")
        job.op("c10d::allreduce_", (20 * US, NCCL))
    job.host("CompiledFunctionBackward", begun, job.now_ns)


def clone_sent(job: GpuJob) -> None:
    copy(job, "aten::clone")
    job.op("c10d::allreduce_", (20 * US, NCCL))


def graph_inputs(job: GpuJob) -> None:
    begun = job.now_ns
    for _ in range(3):
        copy(job)
    job.kernel_of(200 * US, "triton_poi_fused_add", call="cudaGraphLaunch")
    job.host("CompiledFunction", begun, job.now_ns)


def bucket_to_gradient(job: GpuJob) -> None:
    for _ in range(3):
        copy(job, "torch.distributed.ddp.reducer::copy_bucket_to_grad")


def gradient_to_bucket(job: GpuJob) -> None:
    job.op("c10d::allreduce_", (20 * US, NCCL))
    job.op("aten::mm", (20 * US, "gemm"))
    for _ in range(3):
        copy(job, "torch::autograd::AccumulateGrad")


def broadcast_buffers(job: GpuJob) -> None:
    begun = job.now_ns
    for _ in range(3):
        copy(job)
    job.python("torch/nn/parallel/distributed.py(2155): _sync_buffers", begun, job.now_ns)


def gradient_kept(job: GpuJob) -> None:
    """Autograd's own clone of a gradient that something else holds."""
    job.op("c10d::allreduce_", (20 * US, NCCL))
    job.op("aten::mm", (20 * US, "gemm"))
    copy(job, "torch::autograd::AccumulateGrad", "aten::clone")


def next_batch(job: GpuJob) -> None:
    """After a collective, but nothing of it."""
    job.op("c10d::allreduce_", (20 * US, NCCL))
    copy(job)


def uncompiled(job: GpuJob) -> None:
    """A graph is launched elsewhere."""
    copy(job, "CompiledFunction")
    job.kernel_of(200 * US, "triton_poi_fused_add", call="cudaGraphLaunch")


def recorded(do: Callable[[GpuJob], None]) -> GpuJob:
    job = GpuJob()
    for _ in range(STEPS):
        begun = job.now_ns
        work(job)
        job.drain()
        do(job)
        job.wait()
        job.step_of(begun)
    return job


@pytest.mark.parametrize(
    ("do", "reason", "fix"),
    [
        (cloned_gradient, Reason.COLLECTIVE, "all_reduce is in place"),
        (clone_sent, Reason.COLLECTIVE, "all_reduce is in place"),
        (graph_inputs, Reason.GRAPH, "mark_static_address"),
        (bucket_to_gradient, Reason.BUCKETS, "gradient_as_bucket_view=True"),
        (gradient_to_bucket, Reason.BUCKETS, "gradient_as_bucket_view=True"),
        (broadcast_buffers, Reason.BUFFERS, "broadcast_buffers=False"),
    ],
)
def test_a_copy_has_its_reason_and_its_fix(
    do: Callable[[GpuJob], None], reason: Reason, fix: str, tmp_path: Path
) -> None:
    trace = recorded(do).read(tmp_path)
    assert set(Facts(trace)[StagedCopies].reason.tolist()) == {reason}
    [finding] = [found for found in judge_trace(trace).findings if found.rule == "redundant-copy"]
    assert fix in finding.fix
    assert bool(finding.saving.low) is (reason in (Reason.BUCKETS, Reason.BUFFERS))
    assert finding.saving.value >= 50 * US


@pytest.mark.parametrize("do", [gradient_kept, next_batch, uncompiled])
def test_other_copies_are_the_programs_own(do: Callable[[GpuJob], None], tmp_path: Path) -> None:
    said = judge_trace(recorded(do).read(tmp_path))
    assert "redundant-copy" not in {finding.rule for finding in said.findings}
    assert "redundant-copy" not in said.not_judged


def test_launching_them_counts_where_the_device_waits_for_it(tmp_path: Path) -> None:
    job = recorded(lambda job: copy(job, "torch.distributed.ddp.reducer::copy_bucket_to_grad", host_ns=200 * US))
    [finding] = [found for found in judge_trace(job.read(tmp_path)).findings if found.rule == "redundant-copy"]
    assert finding.saving.value > 200 * US > finding.saving.low >= 40 * US
