"""Collectives of a job on the CPU: ranges of gloo's threads, operators that issue them."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_trace import MadeTrace

from tightship_analyzers.analysis.from_files import analyze_paths
from tightship_analyzers.report.sentences import headline
from tightship_platform.results.analysis.run import RunAnalysis
from tightship_platform.vocabulary import Bucket

GLOO_THREAD, BACKWARD = 77, 2
STEP_US = 10_000


def job(*, backend: str = "gloo", hidden: bool = False) -> MadeTrace:
    """Each step computes for 6 ms, issues an all-reduce in 0.5 ms and waits for it in Python for 3 ms."""
    made = MadeTrace()
    for step in range(4):
        at = step * STEP_US
        made.op("aten::mm", at, at + 6_000)
        made.op("c10d::allreduce_", at + 6_000, at + 6_500)
        made.mark(f"{backend}:all_reduce", at + 6_400, at + 9_500, thread=GLOO_THREAD)
        if hidden:
            made.op("aten::mm", at + 6_500, at + 9_500)
        made.op("aten::add_", at + 9_500, at + 9_900)
    made.steps(*(step * STEP_US for step in range(1, 5)))
    return made


def analyzed(made: MadeTrace, folder: Path) -> RunAnalysis:
    made.read(folder)
    return analyze_paths([str(folder / "made.json")])


@pytest.mark.parametrize("backend", ["gloo", "mpi", "ucc"])
def test_waiting_for_a_collective_of_other_threads_is_communication(backend: str, tmp_path: Path) -> None:
    result = analyzed(job(backend=backend), tmp_path)
    (one,) = result.ranks
    buckets, steps = one.summary.buckets, one.summary.steps
    assert buckets[Bucket.COMMUNICATION] == steps * 3_500_000
    assert sum(buckets.values()) == one.summary.window_ns
    assert headline(result).endswith("35.0 % exposed communication.")


def test_what_is_computed_meanwhile_is_work(tmp_path: Path) -> None:
    (one,) = analyzed(job(hidden=True), tmp_path).ranks
    assert one.summary.buckets[Bucket.COMMUNICATION] == one.summary.steps * 500_000
    assert one.summary.buckets[Bucket.PRODUCTIVE] == one.summary.steps * 9_400_000


def test_other_ranges_of_other_threads_are_none(tmp_path: Path) -> None:
    (one,) = analyzed(job(backend="mine"), tmp_path).ranks
    assert one.summary.buckets[Bucket.COMMUNICATION] == one.summary.steps * 500_000
