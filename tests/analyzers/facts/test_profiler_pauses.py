"""Pauses that grow from call to call within one long frame are the recording's, and nothing is priced on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gpu_job import MS, US, GpuJob
from reference_data import TRACES

from tightship_analyzers import trace as traces
from tightship_analyzers.analysis.judge import Verdict, judge_trace
from tightship_analyzers.facts.activity.profiler_pauses import MIN_CALLS, MIN_GROWTH, ProfilerPauses
from tightship_analyzers.facts.idle.causes import Cause, IdleCauses
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.simulation.dependency_graph import DependencyGraph
from tightship_analyzers.trace.intervals import Intervals

CALLS, KERNEL_NS, USUAL_NS = 800, 20 * US, 200
GENERATED = "/tmp/torchinductor_root/ab/generated.py(2533): call"


def growing(number: int) -> int:
    """5 to 85 µs."""
    return 5 * US + 100 * number


def even(number: int) -> int:
    del number
    return 45 * US


def scattered(number: int) -> int:
    return 5 * US + 100 * (number * 397 % CALLS)


def stepping(number: int) -> int:
    """Less than MIN_GROWTH from the first tenth to the last."""
    return 40 * US + int(40 * US * (MIN_GROWTH - 1.2) * number / CALLS)


class StackedJob(GpuJob):
    """Frames know their callers."""

    def call_from(self, caller: int, name: str, begun_ns: int) -> None:
        self.add_ns(
            "python_function", name, begun_ns, self.now_ns, pid=100, tid=100,
            **{"Python id": 10_000 + len(self.events), "Python parent id": caller},
        )  # fmt: skip

    def frame(self, number: int, name: str, begun_ns: int) -> None:
        self.add_ns(
            "python_function", name, begun_ns, self.now_ns, pid=100, tid=100,
            **{"Python id": number, "Python parent id": None},
        )  # fmt: skip


def compiled(pause_ns: Callable[[int], int], *, calls: int = CALLS, native: bool = False) -> StackedJob:
    """Two steps, each one long frame whose calls launch a kernel, behind a short frame; `native`: an operator runs in
    each of the pauses."""
    job = StackedJob()
    for step in (1, 2):
        begun = job.now_ns
        for _ in range(calls):
            job.pause(USUAL_NS)
            since = job.now_ns
            job.pause(US)
            job.call_from(10 + step, "<built-in function len>", since)
        job.frame(10 + step, "train.py(3): prepare", begun)
        entered = job.now_ns
        for number in range(calls):
            since = job.now_ns
            job.pause(pause_ns(number))
            if native:
                job.host("aten::resize", since + USUAL_NS, job.now_ns - USUAL_NS)
            since = job.now_ns
            job.kernel_of(KERNEL_NS)
            job.call_from(20 + step, "<built-in method launch>", since)
        job.frame(20 + step, GENERATED, entered)
        job.drain()
        job.step_of(begun)
    job.begin_step()
    return job


def judged(job: StackedJob, folder: Path) -> tuple[Facts, Verdict]:
    trace = job.read(folder)
    return Facts(trace), judge_trace(trace)


def test_what_the_tracer_takes_is_no_idle_time_of_the_program(tmp_path: Path) -> None:
    facts, verdict = judged(compiled(growing), tmp_path)
    profiler, causes = facts[ProfilerPauses], facts[IdleCauses].window.by_cause()
    assert [facts.trace.names[frame.name] for frame in profiler.slowed] == [GENERATED] * 2
    added_ns = 2 * sum(growing(number) - USUAL_NS for number in range(CALLS))
    assert verdict.summary.recording.profiling_ns == pytest.approx(added_ns, rel=0.1)
    assert causes[Cause.PROFILING] > 0.9 * (causes[Cause.PROFILING] + causes.get(Cause.HOST_DISPATCH, 0))
    assert [finding.rule for finding in verdict.findings] == []
    [warning] = [line for line in verdict.summary.warnings if "recording Python stacks" in line]
    assert "2 calls of /tmp/torchinductor_root/ab/generated.py:2533 (call)" in warning
    graph = facts[DependencyGraph]
    kernels_ns = CALLS * KERNEL_NS
    left_ns = (int(graph.steps_ns.sum()) - graph.profiling_ns) / 2
    assert kernels_ns < left_ns < kernels_ns + 2 * MS


@pytest.mark.parametrize("pause", [even, scattered, stepping])
def test_pauses_that_do_not_grow_steadily_are_the_program_s(tmp_path: Path, pause: Callable[[int], int]) -> None:
    facts, verdict = judged(compiled(pause), tmp_path)
    assert facts[ProfilerPauses].slowed == ()
    assert Cause.PROFILING not in facts[IdleCauses].window.by_cause()
    assert verdict.summary.recording.profiling_ns == 0
    assert "launch-bound" in [finding.rule for finding in verdict.findings]


def test_operators_that_take_longer_and_longer_are_the_program_s(tmp_path: Path) -> None:
    facts, _ = judged(compiled(growing, native=True), tmp_path)
    assert facts[ProfilerPauses].slowed == ()


def test_of_few_calls_nothing_is_concluded(tmp_path: Path) -> None:
    assert (
        judged(compiled(lambda number: 50 * growing(number), calls=MIN_CALLS - 1), tmp_path)[0][ProfilerPauses].slowed
        == ()
    )


def test_gaps_take_no_more_than_the_tracer_had_added_until_then(tmp_path: Path) -> None:
    facts, _ = judged(compiled(growing), tmp_path)
    frame = facts[ProfilerPauses].slowed[0]
    early = Intervals.one(frame.start_ns, frame.start_ns + 10 * US)
    everything = Intervals.one(frame.start_ns, frame.end_ns)
    of_early = facts[ProfilerPauses].caused(frame.tid, early)
    assert of_early.measure_ns == (frame.added & early).measure_ns
    assert facts[ProfilerPauses].caused(frame.tid, everything).measure_ns == frame.added.measure_ns
    assert len(facts[ProfilerPauses].caused(frame.tid + 1, everything)) == 0


@pytest.mark.reference
def test_a_compiled_transformer_is_bound_by_its_device_but_for_the_tracer() -> None:
    path = TRACES / "tracelens" / "inference" / "xdit_sd_3.5" / "profile_trace_rank_0.json.gz"
    trace = traces.open(path)
    facts, verdict = Facts(trace), judge_trace(trace)
    assert len(facts[ProfilerPauses].slowed) == 4, "four passes of one generated function"
    assert 4 * 170 * MS < verdict.summary.recording.profiling_ns < 4 * 201 * MS
    assert not [finding for finding in verdict.findings if "torchinductor" in finding.place]
    left_ns = int(facts[DependencyGraph].steps_ns.sum()) - facts[DependencyGraph].profiling_ns
    assert 750 * MS < left_ns < 850 * MS, "about 0.8 s, by the reading"
