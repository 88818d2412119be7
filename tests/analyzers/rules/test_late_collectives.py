"""Collectives of steps that the device takes long after its host: they are judged, wherever in the file they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_job import MS, US, GpuJob
from rule_jobs import collective

from tightship_analyzers.analysis.judge import Verdict, judge_trace
from tightship_analyzers.findings.model import Finding
from tightship_analyzers.rules.communication.exposed_communication import RULE as EXPOSED
from tightship_analyzers.rules.communication.low_bus_bandwidth import RULE as SLOW

STEPS = 4
HOST_NS, COMPUTE_NS, REDUCE_NS = 16 * MS, 3 * MS, 16 * MS
"""Of a step: the host's time, and two kinds of work that follow each other on the device."""
ELEMENTS = 25 << 20
"""100 MiB in float32; xGMI takes 0.6 ms for them."""


def behind(lag_ns: int, folder: Path) -> Verdict:
    """Until `lag_ns` the device does what was launched before recording began, then the steps in the file."""
    job = GpuJob(device="AMD Instinct MI300X", stacks=False, distributed={"world_size": 8})
    first_ns = job.now_ns
    for begun_ns in range(first_ns, first_ns + lag_ns, COMPUTE_NS + REDUCE_NS):
        job.on_device(begun_ns, begun_ns + COMPUTE_NS, name="Cijk_Ailk_Bljk", stream=7)
        reduced_ns = begun_ns + COMPUTE_NS + REDUCE_NS
        job.on_device(begun_ns + COMPUTE_NS, reduced_ns, name="ncclDevKernel_Generic", stream=20)
        job.free_ns = {7: reduced_ns, 20: reduced_ns}
    for _ in range(STEPS + 1):
        begun = job.now_ns
        job.op("aten::mm", (COMPUTE_NS, "Cijk_Ailk_Bljk"))
        job.free_ns[20] = job.free_ns[7]
        reduce = (REDUCE_NS, "ncclDevKernel_Generic")
        job.op("c10d::allreduce_", reduce, stream=20, **collective("allreduce", ELEMENTS))
        job.free_ns[7] = job.free_ns[20]
        job.pause(begun + HOST_NS - job.now_ns)
        job.step_of(begun)
    job.begin_step()
    return judge_trace(job.read(folder))


def found(verdict: Verdict, rule: str) -> list[Finding]:
    return [finding for finding in verdict.findings if finding.rule == rule]


@pytest.mark.parametrize("steps_behind", [2, STEPS + 2])
def test_slow_collectives_are_found_however_late_the_device_is(tmp_path: Path, steps_behind: int) -> None:
    verdict = behind(steps_behind * (COMPUTE_NS + REDUCE_NS), tmp_path)
    assert verdict.summary.step_ns is not None
    assert verdict.summary.step_ns.min == pytest.approx(COMPUTE_NS + REDUCE_NS, abs=20 * US)
    [finding] = found(verdict, SLOW.id)
    assert finding.saving.value == pytest.approx(REDUCE_NS - MS, abs=MS // 2)
    assert finding.saving.low <= COMPUTE_NS + REDUCE_NS - HOST_NS + 50 * US, "then the host sets the pace"
    facts = [entry.text for entry in finding.evidence if entry.kind == "fact"]
    assert any("100.0 MiB" in text for text in facts), facts


def test_what_nothing_could_hide_is_not_blamed_on_missing_overlap(tmp_path: Path) -> None:
    verdict = behind(2 * (COMPUTE_NS + REDUCE_NS), tmp_path)
    assert all(finding.saving.low == 0 for finding in found(verdict, EXPOSED.id))
    assert verdict.findings[0].rule == SLOW.id
