"""A launch call that loads the kernel's code says so; a slow launch of a kernel that ran before does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_job import MS, US, GpuJob
from rule_jobs import work

from tightship_analyzers.facts.activity.first_launches import LOADING_NS
from tightship_analyzers.facts.idle.causes import Cause, IdleCauses
from tightship_analyzers.facts.memo import Facts

SLOW_NS = 6 * MS
NEW, KNOWN = "kernel_not_seen_before", "ampere_bf16_s16816gemm"


def compiling_ns(folder: Path, kernel: str, took_ns: int, call: str) -> int:
    """Idle time called compilation, of a job in which one launch of this kernel takes so long."""
    job = GpuJob()
    begun = job.now_ns
    job.kernel_of(50 * US, KNOWN)
    work(job)
    job.drain()
    job.pause(10 * US)
    since = job.now_ns
    job.pause(took_ns)
    link = job.call(since, job.now_ns, name=call)
    job.on_device(job.now_ns + US, job.now_ns + 20 * US, name=kernel, link=link)
    job.free_ns[7] = job.now_ns + 20 * US
    job.host("aten::add_", since, job.now_ns)
    work(job)
    job.drain()
    job.step_of(begun)
    return Facts(job.read(folder))[IdleCauses].window.by_cause().get(Cause.COMPILATION, 0)


@pytest.mark.parametrize(
    "call", ["hipLaunchKernel", "cudaLaunchKernel", "cuLaunchKernelEx", "hipExtModuleLaunchKernel"]
)
def test_the_first_launch_of_a_kernel_that_takes_long_loads_it(tmp_path: Path, call: str) -> None:
    assert compiling_ns(tmp_path, NEW, SLOW_NS, call) == pytest.approx(SLOW_NS, rel=0.01)


@pytest.mark.parametrize(
    ("kernel", "took_ns", "call"),
    [
        (KNOWN, SLOW_NS, "hipLaunchKernel"),
        (NEW, LOADING_NS, "hipLaunchKernel"),
        (NEW, SLOW_NS, "cudaGraphLaunch"),
    ],
)
def test_any_other_launch_loads_nothing(tmp_path: Path, kernel: str, took_ns: int, call: str) -> None:
    assert compiling_ns(tmp_path, kernel, took_ns, call) == 0
