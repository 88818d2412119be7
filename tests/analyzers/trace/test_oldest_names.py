"""Traces of PyTorch 1.8: `Operator` for everything on the host, thread numbers as text, arrows named `async`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gpu_job import MS, US, GpuJob
from hazard_traces import FETCH, UPDATE, ZERO_GRAD, in_oldest_words
from reference_data import TRACES
from trace_files import tables_of, trace_text

from tightship_analyzers import trace as traces
from tightship_analyzers.analysis.judge import judge_trace
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.loader_ranges import LoaderRanges
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.trace.kineto.kinds import is_annotation

PAIR = "kineto_pair/resnet50_num_workers_{}.pt.trace.json.gz"


def starved_job(steps: int = 6) -> GpuJob:
    """Each step fetches for 3 ms and keeps the device busy for 2 ms."""
    job = GpuJob(stacks=False)
    for _ in range(steps):
        begun = job.now_ns
        job.op("aten::empty", host_ns=3 * MS)
        job.host(FETCH, begun, job.now_ns, category="user_annotation")
        job.kernel_of(10 * US, "Memcpy HtoD (Pageable -> Device)", category="gpu_memcpy", bytes=4096)
        job.op("aten::mm", (2 * MS, "gemm"), dims=[[8, 8], [8, 8]], types=["float", "float"])
        job.host("ReluBackward1", job.now_ns, job.now_ns + US, thread=101)
        for name in (ZERO_GRAD, UPDATE):
            since = job.now_ns
            job.op("aten::add_", (5 * US, "add"))
            job.host(name, since, job.now_ns, category="user_annotation")
        job.wait()
        job.step_of(begun)
    return job


def test_the_same_recording_in_old_words_is_the_same(tmp_path: Path) -> None:
    events = starved_job().events
    (tmp_path / "new.json").write_bytes(trace_text(events, before={}, after={}))
    (tmp_path / "old.json").write_bytes(trace_text(in_oldest_words(events), before={}, after={}))
    today, before = (traces.open(tmp_path / name) for name in ("new.json", "old.json"))
    assert before.warnings == [] and before.events > 2 * len(before.device_events)
    assert [thread._replace(name="") for thread in before.threads] == list(today.threads)
    assert before.threads[0].name == "thread 0 (python)"
    rows, expected = tables_of(before), tables_of(today)
    for name, table in expected.items():
        assert [_comparable(row) for row in rows[name]] == [_comparable(row) for row in table], name
    assert len(before.annotations) == 6 * 4 and len(before.links) == 0
    judged, other = judge_trace(before), judge_trace(today)
    assert judged.summary.buckets == other.summary.buckets
    assert [finding.rule for finding in judged.findings] == [finding.rule for finding in other.findings]
    assert judged.findings[0].rule == "starved-input"


def _comparable(row: tuple[object, ...]) -> tuple[object, ...]:
    """Without the labels of threads."""
    return tuple((cell.pid, cell.tid) if isinstance(cell, traces.model.Thread) else cell for cell in row)


@pytest.mark.parametrize(
    "name", ["ProfilerStep#5", FETCH, UPDATE, "nccl:all_reduce", "## forward ##", "my part", "", "a.b", "1x"]
)
def test_annotations_by_their_name(name: str) -> None:
    assert is_annotation(name)


@pytest.mark.parametrize(
    "name",
    [
        "aten::mm",
        "aten::add.Tensor",
        "ReluBackward1",
        "detach_",
        "torch::autograd::AccumulateGrad",
        "autograd::engine::evaluate_function: MmBackward0",
        "torch::autograd::CppNode<Fn, 1>",
        "a::b\nc",
    ],
)
def test_operators_by_their_name(name: str) -> None:
    assert not is_annotation(name)


MEASURED_NS = 33_900_000
"""What four workers really brought: the difference of the median steps, 155.0 and 121.1 ms."""


@pytest.mark.reference
@pytest.mark.parametrize(("workers", "median_ms", "fetched"), [(0, 155.0, "_Single"), (4, 121.1, "_MultiProcessing")])
def test_the_tutorial_s_pair(workers: int, median_ms: float, fetched: str) -> None:
    """One job without and with workers of its loader."""
    trace = traces.open(TRACES / PAIR.format(workers))
    marks = trace.annotations_named("ProfilerStep#")
    assert len(marks) == 6
    assert np.median(marks.dur_ns) / MS == pytest.approx(median_ms, abs=0.05)
    facts = Facts(trace)
    assert facts[Steps].count == 5, "the last mark ends with the recording"
    fetches = facts[LoaderRanges]
    assert (fetches.calls, fetches.in_process) == (5, workers == 0)
    names = {trace.names[number] for number in trace.annotations_named("enumerate(DataLoader)#").name.tolist()}
    assert len(names) == 1 and fetched in names.pop()


@pytest.mark.reference
def test_what_workers_would_save_is_what_they_saved() -> None:
    before, after = (judge_trace(traces.open(TRACES / PAIR.format(workers))) for workers in (0, 4))
    starved = before.findings[0]
    assert starved.rule == "starved-input" and "starved-input" not in {one.rule for one in after.findings}
    assert starved.saving.value == pytest.approx(MEASURED_NS, rel=0.15)
