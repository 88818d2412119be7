"""What is slow because it happens for the first time says so; what is slow for another reason does not."""

from __future__ import annotations

from collections.abc import Callable
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


CHOOSING_NS = 2 * MS
SMALL, LARGE = [[8, 32], [32, 8]], [[512, 64], [64, 512]]


def product(job: GpuJob, dims: object, own_ns: int, *, name: str = "aten::mm") -> None:
    """One whose host part takes `own_ns`; the shapes, where they are not recorded, show in the grid."""
    shape = {} if dims is None else {"dims": dims, "types": ["float", "float"]}
    job.op(name, (30 * US, KNOWN), host_ns=own_ns, **shape)
    job.drain()


def choosing_ns(folder: Path, part: Callable[[GpuJob], None]) -> int:
    """Idle time called compilation, of one step."""
    job = GpuJob()
    begun = job.now_ns
    product(job, SMALL, 20 * US)
    part(job)
    product(job, SMALL, 20 * US)
    job.step_of(begun)
    return Facts(job.read(folder))[IdleCauses].window.by_cause().get(Cause.COMPILATION, 0)


def shapes_of(*calls: tuple[object, int]) -> Callable[[GpuJob], None]:
    def part(job: GpuJob) -> None:
        for dims, own_ns in calls:
            product(job, dims, own_ns)

    return part


def test_the_first_call_with_new_shapes_chooses_a_kernel(tmp_path: Path) -> None:
    part = shapes_of((LARGE, CHOOSING_NS), (LARGE, 20 * US), (LARGE, 20 * US))
    assert choosing_ns(tmp_path, part) == pytest.approx(CHOOSING_NS, rel=0.02)


def test_shapes_that_come_only_once_are_judged_by_the_other_calls(tmp_path: Path) -> None:
    assert choosing_ns(tmp_path, shapes_of((LARGE, CHOOSING_NS))) == pytest.approx(CHOOSING_NS, rel=0.02)


def test_without_shapes_kernel_and_grid_stand_for_them(tmp_path: Path) -> None:
    def part(job: GpuJob) -> None:
        for grid, own_ns in (([8, 1, 1], 20 * US), ([64, 1, 1], CHOOSING_NS), ([8, 1, 1], 20 * US)):
            job.op("aten::bmm", (30 * US, KNOWN), host_ns=own_ns, grid=grid)
            job.drain()

    assert choosing_ns(tmp_path, part) == pytest.approx(CHOOSING_NS, rel=0.02)


@pytest.mark.parametrize(
    "part",
    [
        shapes_of((SMALL, CHOOSING_NS)),
        shapes_of((LARGE, 20 * US), (LARGE, CHOOSING_NS)),
        shapes_of(*[(LARGE, CHOOSING_NS)] * 5),
        lambda job: product(job, LARGE, CHOOSING_NS, name="own::called_once"),
        lambda job: job.host("aten::nonzero", job.now_ns, job.pause(CHOOSING_NS) or job.now_ns),
    ],
    ids=["known shapes", "not the first call", "always slow", "nothing to compare with", "launches nothing"],
)
def test_any_other_slow_operator_chooses_nothing(tmp_path: Path, part: Callable[[GpuJob], None]) -> None:
    assert choosing_ns(tmp_path, part) == 0
