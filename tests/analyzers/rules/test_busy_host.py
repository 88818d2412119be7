"""Whose code holds the device up: the user's, torch's with its own remedy, or nobody's whom the trace names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gpu_job import MS, PLACE, US, GpuJob
from rule_jobs import STEPS, host_code, work
from trace_files import trace_text

from tightship_analyzers import trace as traces
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.findings.model import Finding
from tightship_analyzers.rules.host.busy_host import BUFFERS, FUSE, MOVE, RULE, Remedy

PAUSE_NS = 2 * MS


def findings(folder: Path, part: Callable[[GpuJob], None], *, stacks: bool = True) -> list[Finding]:
    """Each step computes, does this part while the device has nothing to do, and computes again."""
    job = GpuJob(stacks=stacks)
    for _ in range(STEPS):
        begun = job.now_ns
        work(job)
        job.drain()
        part(job)
        work(job)
        job.drain()
        job.step_of(begun)
    facts = Facts(job.read(folder))
    for need in RULE.needs:
        facts[need]
    return list(RULE.judge(facts))  # type: ignore[arg-type]


def in_range(name: str, *operators: str) -> Callable[[GpuJob], None]:
    """The host is busy for PAUSE_NS inside of this range, in these operators one after the other."""

    def part(job: GpuJob) -> None:
        begun = job.now_ns
        for operator in operators:
            since = job.now_ns
            job.pause(PAUSE_NS // len(operators))
            job.host(operator, since, job.now_ns)
        if not operators:
            job.pause(PAUSE_NS)
        job.host(name, begun, job.now_ns, category="user_annotation")

    return part


def pause(job: GpuJob) -> None:
    job.pause(PAUSE_NS)


def issuing(job: GpuJob) -> None:
    """As busy, but it launches something every 100 µs that the device does later."""
    for _ in range(PAUSE_NS // (100 * US)):
        job.pause(95 * US)
        job.call(job.now_ns, job.now_ns + 5 * US, name="hipMemcpyAsync")
        job.now_ns += 5 * US


def unlinked(job: GpuJob) -> None:
    """The gap ends in work of which nobody knows who launched it, and when."""
    job.pause(PAUSE_NS)
    job.on_device(
        job.now_ns, job.now_ns + 20 * US, name="Memcpy DtoD (Device -> Device)", category="gpu_memcpy", link=0
    )
    job.pause(20 * US)


@pytest.mark.parametrize(
    ("part", "remedy"),
    [
        (pause, MOVE),
        (in_range("DistributedDataParallel.forward", "aten::unflatten_dense_tensors"), BUFFERS),
        (in_range("DistributedDataParallel.forward", "aten::topk"), MOVE),
        (in_range("elsewhere", "aten::unflatten_dense_tensors"), MOVE),
        (in_range("Optimizer.step#AdamW.step", "aten::_foreach_add_"), FUSE),
    ],
)
def test_the_remedy_is_that_of_whose_code_it_is(tmp_path: Path, part: Callable[[GpuJob], None], remedy: Remedy) -> None:
    [finding] = findings(tmp_path, part)
    assert finding.fix == remedy.fix
    assert finding.place == PLACE
    assert finding.saving.value == pytest.approx(PAUSE_NS, rel=0.02)


@pytest.mark.parametrize(
    "part",
    [
        issuing,
        unlinked,
        in_range("Optimizer.step#AdamW.step", "aten::_fused_adamw_"),
        in_range("Optimizer.step#Shampoo.step", "aten::_foreach_add_"),
        in_range("DistributedDataParallel.forward", "torch.distributed.ddp.reducer::copy_bucket_to_grad"),
    ],
)
def test_what_nobody_can_move_is_no_finding(tmp_path: Path, part: Callable[[GpuJob], None]) -> None:
    assert findings(tmp_path, part) == []


def test_without_stacks_only_operators_count(tmp_path: Path) -> None:
    assert findings(tmp_path, pause, stacks=False) == []
    [finding] = findings(tmp_path, lambda job: host_code(job, True), stacks=False)
    assert finding.place == "aten::topk"


def host_in(steps: set[int], count: int) -> Callable[[GpuJob], None]:
    """The host is busy in these of the steps only."""
    at = iter(range(count))

    def part(job: GpuJob) -> None:
        if next(at) in steps:
            job.pause(PAUSE_NS * count)

    return part


def test_what_happens_in_one_step_only_is_not_priced_as_if_it_came_back(tmp_path: Path) -> None:
    assert findings(tmp_path, host_in({1}, STEPS)) == []
    [finding] = findings(tmp_path, host_in({1, 3}, STEPS))
    assert finding.saving.value == pytest.approx(2 * PAUSE_NS, rel=0.02)


def unmarked(folder: Path, name: str, *dims: object, launches: bool = True) -> list[Finding]:
    """A recording without steps, of calls that take the host long; each with its shapes."""
    job = GpuJob(stacks=False)
    for shape in (*dims, None):
        work(job)
        job.drain()
        begun = job.now_ns
        job.pause(PAUSE_NS if shape else 0)
        if launches:
            job.kernel_of(20 * US)
        job.host(name, begun, job.now_ns, **({"Input Dims": shape} if shape else {}))
    work(job)
    job.events = [event for event in job.events if "ProfilerStep" not in event["name"]]
    (folder / "job.json").write_bytes(trace_text(job.events))
    return list(RULE.judge(Facts(traces.open(folder / "job.json"))))  # type: ignore[arg-type]


def test_without_steps_the_first_call_with_each_shape_is_start_up(tmp_path: Path) -> None:
    assert unmarked(tmp_path, "own::product", [[8, 8]], [[16, 8]], [[32, 8]]) == []
    assert unmarked(tmp_path, "own::product", [[8, 8]], [[8, 8]], [[8, 8]]) != []


def test_what_computes_on_the_host_has_no_kernel_to_choose(tmp_path: Path) -> None:
    assert unmarked(tmp_path, "aten::resize", [[8, 8]], [[16, 8]], [[32, 8]], launches=False) != []
