"""Batches that a server marks are steps; what marks none is one recording."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_job import MS, US, GpuJob
from trace_files import unmarked

from tightship_analyzers import trace as traces
from tightship_analyzers.analysis.judge import judge_trace
from tightship_analyzers.analysis.picked_steps import pick_step, step_names
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.rules.host.allocator_churn import RULE as ALLOCATOR
from tightship_analyzers.trace.model import Trace

BATCH_NS = MS
PREFILL, DECODE = "step[EXTEND bs=1 toks=512]", "step[DECODE bs=8]"


def server(folder: Path, *marks: str, trains: bool = False) -> Trace:
    """One batch for each mark, with its allocation of device memory."""
    job = GpuJob(stacks=False)
    for mark in marks:
        begun = job.now_ns
        job.op("aten::mm", (BATCH_NS, "ampere_bf16_s16816gemm_bf16_128x128"))
        job.drain()
        at = job.now_ns
        job.pause(200 * US)
        job.call(at, job.now_ns, name="cudaMalloc")
        job.host(mark, begun, job.now_ns, category="user_annotation")
        if trains:
            job.host("Optimizer.step#SGD.step", job.now_ns, job.now_ns + US, category="user_annotation")
        job.pause(100 * US)
    return traces.open(unmarked(job.text(), folder / "server.json"))


@pytest.mark.parametrize(
    "mark",
    [
        "execute_context_1(512)_generation_8(8)",
        "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)",
        "execute_new_1_cached_8",
        DECODE,
        PREFILL,
        "step[TARGET_VERIFY bs=8]",
        "decode[bs=8 tok=8 d=8]",
        "eager_prefill[bs=1 tok=512 p=1]",
    ],
)
def test_a_server_s_batches_are_steps(tmp_path: Path, mark: str) -> None:
    trace = server(tmp_path, *[mark] * 5)
    steps = Facts(trace)[Steps]
    assert steps.count == 4, "from one batch to the next: of the last one the end is not known"
    assert steps.durations_ns.tolist() == [steps.mean_ns] * 4
    assert steps.mean_ns > BATCH_NS + 300 * US, "what the server does between two batches belongs to the first"


def test_batches_of_all_kinds_are_steps_by_their_names(tmp_path: Path) -> None:
    trace = server(tmp_path, PREFILL, DECODE, DECODE, "draft step[DECODE bs=8]", DECODE)
    facts = Facts(trace)
    assert [name for _, name in step_names(trace, facts[Steps])] == [PREFILL, DECODE, DECODE]
    pick_step(facts, PREFILL)
    assert facts[Steps].count == 1


def test_rules_that_compare_steps_judge_a_server(tmp_path: Path) -> None:
    [finding] = judge_trace(server(tmp_path, *[DECODE] * 6), rules=(ALLOCATOR,)).findings
    assert finding.unit == "ns/step"


@pytest.mark.parametrize(
    "marks",
    [
        (DECODE,),
        ("draft step[DECODE bs=8]",) * 4,
        ("step[DRAFT_LOOP raw_bs=8 bs=8]",) * 4,
        ("capture_32_FULL",) * 4,
        ("prefill", "decode", "decode", "decode"),
        ("denoise", "denoise", "denoise"),
    ],
)
def test_one_batch_and_marks_of_others_leave_the_recording_whole(tmp_path: Path, marks: tuple[str, ...]) -> None:
    facts = Facts(server(tmp_path, *marks))
    assert facts.find(Steps) is None
    assert not facts[Window].of_steps


def test_what_trains_has_the_steps_of_its_optimizer(tmp_path: Path) -> None:
    trace = server(tmp_path, *[DECODE] * 5, trains=True)
    assert Facts(trace)[Steps].bounds_ns[0] == trace.annotations_named("Optimizer.step#").end_ns[0]
