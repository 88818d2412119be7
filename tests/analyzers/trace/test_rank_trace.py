"""One rank of an op table as a canonical trace: what judges traces judges it, or says what it needs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import op_tables
import pytest
from click.testing import CliRunner
from op_tables import job_rows
from reference_data import STRAGGLERS
from trace_files import assert_sound

from tightship_analyzers import stragglers
from tightship_analyzers.analysis.judge import judge_trace
from tightship_analyzers.commands.analyze import analyze
from tightship_analyzers.commands.diff import diff
from tightship_analyzers.facts.idle.causes import Cause, ExposedCommunication, IdleCauses
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.findings.model import Failed
from tightship_analyzers.metrics.launches import launch_stats
from tightship_analyzers.metrics.overlap import overlap
from tightship_analyzers.metrics.steps import step_count
from tightship_analyzers.metrics.temporal import temporal_breakdown
from tightship_analyzers.rules.communication.exposed_communication import MIN_STEP_FRAC
from tightship_analyzers.stragglers import OpTableError, ranks_of
from tightship_analyzers.trace.columns import EventKind
from tightship_analyzers.trace.model import Trace
from tightship_analyzers.trace.op_table.rank_trace import rank_trace
from tightship_platform.results.not_applicable import NotApplicable

SECOND = 10**9
STEP_NS = (2 + 3 * (4 + 2 - 1)) * SECOND
"""Of `job_rows()`: 4 micro-batches in 2 stages."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return op_tables.write(tmp_path / "job.parquet", job_rows())


def test_steps_follow_one_another_on_one_clock(path: Path) -> None:
    table = stragglers.open(path)
    assert ranks_of(table) == [0, 1, 2, 3]
    for rank in ranks_of(table):
        trace = rank_trace(table, rank)
        assert_sound(trace)
        steps = Facts(trace)[Steps]
        assert (steps.count, steps.start_ns, steps.durations_ns.tolist()) == (2, 0, [STEP_NS, STEP_NS])
        assert (trace.rank, trace.world_size, trace.device_kind) == (rank, 4, "gpu")
        assert step_count(trace) == 2


def test_the_device_time_is_that_of_the_operations(path: Path) -> None:
    found = temporal_breakdown(rank_trace(stragglers.open(path), 0))
    assert not isinstance(found, NotApplicable)
    # Each step: a gather of 1 s, four forwards of 1 s and four backwards of 2 s, an optimizer of 1 s; the rest idles.
    assert found.kernel_span_ns == 2 * STEP_NS
    assert found.compute_ns == 2 * (4 * 1 + 4 * 2 + 1) * SECOND
    shared = overlap(rank_trace(stragglers.open(path), 0))
    assert not isinstance(shared, NotApplicable)
    assert shared.comm_ns == found.non_compute_ns + shared.overlapped_ns
    facts = Facts(rank_trace(stragglers.open(path), 0))
    assert sum(facts[IdleCauses].window.by_cause().values()) == found.idle_ns
    assert facts[ExposedCommunication].window.by_cause() == {Cause.COLLECTIVE_WAIT: found.non_compute_ns}


def test_a_stage_that_waits_for_another_one_is_not_called_exposed_communication(path: Path) -> None:
    trace = rank_trace(stragglers.open(path), 0)
    waits = temporal_breakdown(trace)
    assert not isinstance(waits, NotApplicable) and waits.non_compute_ns > MIN_STEP_FRAC * STEP_NS * 2
    said = judge_trace(trace)
    assert "exposed-communication" not in {finding.rule for finding in said.findings}
    assert "tightship stragglers" in said.not_judged["exposed-communication"].reason


def test_collectives_carry_group_and_number(path: Path) -> None:
    first, other_stage, other_rank = (rank_trace(stragglers.open(path), rank) for rank in (0, 1, 2))

    def keys(trace: Trace) -> list[tuple[str, int]]:
        reported = trace.collectives
        return [(trace.names[g], s) for g, s in zip(reported.group.tolist(), reported.seq.tolist(), strict=True)]

    assert keys(first) == keys(other_rank) and len(set(keys(first))) == len(keys(first))
    assert not set(keys(first)) & set(keys(other_stage))
    assert (first.device_events.kind[first.collectives.row] == EventKind.COLLECTIVE).all()
    assert set(first.collectives.group_size.tolist()) == {2}


def test_garbage_is_the_hosts(tmp_path: Path) -> None:
    rows = [
        row | {"duration": row["duration"] + 0.25} if row["optype"] == "gc" and row["rank"] == 1 else row
        for row in job_rows(steps=(3,))
    ]
    table = stragglers.open(op_tables.write(tmp_path / "job.parquet", rows))
    trace = rank_trace(table, 1)
    assert [trace.names[name] for name in trace.frames.name.tolist()] == ["Python GC"]
    assert trace.frames.dur_ns.tolist() == [SECOND // 4]


def test_what_needs_a_host_says_so(path: Path) -> None:
    trace = rank_trace(stragglers.open(path), 3)
    why = launch_stats(trace)
    assert isinstance(why, NotApplicable) and "launch" in why.reason
    said = judge_trace(trace)
    assert not [one for one in said.not_judged.values() if isinstance(one, Failed)]
    assert said.not_judged["launch-bound"].reason.startswith("needs runtime calls")
    assert sum(said.summary.buckets.values()) == said.summary.window_ns == 2 * STEP_NS


def test_an_unknown_rank_is_one_line(path: Path) -> None:
    with pytest.raises(OpTableError, match=r"has no rank 9; it has 0, 1, 2, 3"):
        rank_trace(stragglers.open(path), 9)


class TestCommandLine:
    def run(self, *arguments: object) -> Any:
        return CliRunner().invoke(analyze, [*map(str, arguments), "--jobs", "1"], catch_exceptions=True)

    def test_a_table_stands_for_all_its_ranks(self, path: Path) -> None:
        said = json.loads(self.run(path, "--json").output)
        assert [rank["rank"] for rank in said["ranks"]] == [0, 1, 2, 3]
        assert [rank["source"] for rank in said["ranks"]] == [f"{path}#rank={rank}" for rank in range(4)]
        for rank in said["ranks"]:
            assert sum(row["ns"] for row in rank["idle_causes"]) == rank["temporal"]["idle_ns"]

    def test_one_rank_by_name(self, path: Path) -> None:
        assert "rank 2: 2 steps of 17" in self.run(f"{path}#rank=2").output

    def test_two_ranks_compared(self, path: Path) -> None:
        said = CliRunner().invoke(diff, [f"{path}#rank=0", f"{path}#rank=1"]).output
        assert "1 trace, 2 steps" in said and "forward-recv" in said

    @pytest.mark.parametrize("name", ["nothing.parquet", "damaged.parquet", "job.parquet#rank=77"])
    def test_what_cannot_be_read_is_one_line(self, path: Path, name: str) -> None:
        (path.parent / "damaged.parquet").write_bytes(b"PAR1" + b"x" * 50 + b"PAR1")
        result = self.run(path.parent / name)
        assert result.exit_code != 0 and not result.output.count("Traceback")
        assert "p table" in str(result.exception or result.output)


@pytest.mark.reference
@pytest.mark.parametrize("name", ["trace-AR.parquet", "trace-ST.parquet"])
def test_published_tables(name: str) -> None:
    assert_every_operation_is_in_a_trace(stragglers.open(STRAGGLERS / name))


@pytest.mark.parametrize("seed", range(4))
def test_any_table(tmp_path: Path, seed: int) -> None:
    """Costs, transfers and garbage collections of any length, in an interleaved schedule or not."""
    rng = random.Random(seed)
    shape = {"dp_ranks": 2, "stages": 3, "microbatches": 3, "chunks": 1 + 2 * (seed % 2)}
    rows = job_rows(cost=lambda *_: rng.uniform(0.1, 9), transfer=lambda *_: rng.uniform(0, 2), **shape)
    for row in rows:
        if row["optype"] == "gc":
            row["duration"] = rng.uniform(0, 0.5)
    assert_every_operation_is_in_a_trace(stragglers.open(op_tables.write(tmp_path / "job.parquet", rows)))


def assert_every_operation_is_in_a_trace(table: stragglers.OpTable) -> None:
    counted = 0
    for rank in ranks_of(table):
        trace = rank_trace(table, rank)
        assert_sound(trace)
        found, idle = temporal_breakdown(trace), Facts(trace)[IdleCauses]
        assert not isinstance(found, NotApplicable)
        assert idle.of_kernel_span(trace).measure_ns == found.idle_ns
        counted += len(trace.device_events) + len(trace.frames)
    assert counted == len(table)
