"""A job of several GPUs whose traces hold all that a report can draw."""

from __future__ import annotations

from pathlib import Path

from gpu_job import MS, US, GpuJob
from rule_jobs import STEPS, attention, exposed, pageable, scalar_read

LATE_RANK, RANKS = 1, 3


def traces_of(folder: Path) -> list[str]:
    """One file per rank; one rank comes late to a collective of every step."""
    paths = []
    for rank in range(RANKS):
        job = GpuJob(rank=rank)
        for _ in range(STEPS):
            begun = job.now_ns
            pageable(job, True)
            attention(job, True)
            scalar_read(job, True)
            exposed(job, True)
            job.pause(2 * MS if rank == LATE_RANK else 0)
            waits_ns = 0 if rank == LATE_RANK else 2 * MS
            job.op("c10d::allreduce_", (100 * US + waits_ns, "ncclDevKernel_AllReduce_Sum_f32"), stream=20)
            job.drain()
            job.step_of(begun)
        path = folder / f"rank{rank}.json"
        path.write_bytes(job.text())
        paths.append(str(path))
    return paths
