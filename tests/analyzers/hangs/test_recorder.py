"""Dumps of the real recorder, of real jobs: two ranks on gloo, and the recorded incidents."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import reference_data

from tightship_analyzers.hangs import judge, read_dumps
from tightship_platform.results.hang import HangKind

JOB = Path(__file__).parents[2] / "support" / "recorder_job.py"
WRITTEN = ("", " as JSON")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("dumps")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(JOB),
        str(made),
    ]
    environ = os.environ | {"TORCH_FR_BUFFER_SIZE": "100", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return made


@pytest.mark.torch
@pytest.mark.parametrize("how", WRITTEN)
class TestRealRanks:
    def test_nobody_waits(self, folder: Path, how: str) -> None:
        report = judge(read_dumps([folder / f"idle{how}"]))
        assert (report.ranks, report.dumps, report.culprits, report.waits) == (2, [0, 1], [], [])
        assert report.verdict.startswith("No rank waits")

    def test_a_rank_that_has_not_called_it(self, folder: Path, how: str) -> None:
        report = judge(read_dumps([folder / f"one rank is not there{how}"]))
        (culprit,) = report.culprits
        assert (culprit.rank, culprit.kind, culprit.pending) == (1, HangKind.NOT_ENTERED, 0)
        assert (culprit.operation.name, culprit.operation.group) == ("all_reduce", "default_pg")
        (wait,) = report.waits
        assert (wait.waiting, wait.missing, wait.direct) == ([0], [1], True)
        assert report.verdict == (
            "Rank 1 has not called all_reduce 2 of default_pg. 1 rank waits for it in all_reduce 2 of default_pg."
        )
        assert report.cause.startswith("Unknown")

    def test_each_waits_for_the_other(self, folder: Path, how: str) -> None:
        report = judge(read_dumps([folder / f"each in another group{how}"]))
        assert [(c.rank, c.kind, c.operation.group) for c in report.culprits] == [
            (0, HangKind.DEADLOCKED, "EVEN"),
            (1, HangKind.DEADLOCKED, "ODD"),
        ]


@pytest.mark.torch
def test_where_its_program_called_it(folder: Path) -> None:
    (culprit,) = judge(read_dumps([folder / "one rank is not there"])).culprits
    assert culprit.place is not None and "recorder_job.py" in culprit.place


@pytest.mark.reference
@pytest.mark.parametrize(
    ("incident", "kind", "waiting_in"),
    [
        ("gpu_error_1st", HangKind.QUEUED, "all_to_all 20537 EXPERT_MODEL_PARALLEL_GROUP"),
        ("lock_gil_1st", HangKind.NOT_ENTERED, "all_to_all 45265 EXPERT_MODEL_PARALLEL_GROUP"),
    ],
)
def test_the_recorded_incidents(incident: str, kind: HangKind, waiting_in: str) -> None:
    folder = reference_data.HANGS / incident
    injected = (folder / "fault_injection.log").read_text().splitlines()[0].partition(":")[2]
    report = judge(read_dumps([folder]))
    assert str([culprit.rank for culprit in report.culprits]) == injected.strip()
    assert {culprit.kind for culprit in report.culprits} == {kind}
    in_what = [f"{w.operation.name} {w.operation.seq} {w.operation.group}" for w in report.waits if w.direct]
    assert in_what[0] == waiting_in
    waiting = [rank for wait in report.waits for rank in wait.waiting]
    assert sorted([*waiting, *(c.rank for c in report.culprits)]) == list(range(16)), "each rank stands once"
    assert report.cause.startswith("Unknown from the dumps")
