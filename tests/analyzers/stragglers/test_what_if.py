"""Small jobs whose lengths follow on paper: no straggler, a slow rank, a slow stage, interleaved chunks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import op_tables
import pytest
from examples import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from op_tables import Row, job_rows, usual_cost

from tightship_analyzers import stragglers

S = 10**9
Job = Callable[..., stragglers.WhatIf]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    def of(rows: list[Row] | None = None, **shape: Any) -> stragglers.WhatIf:
        path = op_tables.write(tmp_path / "job.parquet", job_rows(**shape) if rows is None else rows)
        return stragglers.WhatIf(stragglers.open(path))

    return of


SHAPES: list[tuple[dict[str, int], int]] = [
    ({}, 17),
    ({"dp_ranks": 1}, 17),
    ({"stages": 1}, 14),
    ({"dp_ranks": 1, "stages": 1, "microbatches": 1}, 5),
    ({"stages": 4}, 23),
    ({"stages": 4, "microbatches": 2}, 17),
    ({"chunks": 2, "microbatches": 2}, 17),
    ({"stages": 3, "chunks": 3, "microbatches": 3}, 35),
]


@pytest.mark.parametrize(("shape", "seconds"), SHAPES)
def test_without_stragglers_nothing_is_lost(job: Job, shape: dict[str, int], seconds: int) -> None:
    even = job(**shape)
    assert even.measured_ns.tolist() == even.actual_ns.tolist() == even.ideal_ns.tolist() == [seconds * S] * 2
    assert even.slowdown == even.launch_slowdown == 1.0
    for rows in (even.by_dp_rank, even.by_stage, even.by_op_type, even.by_worker):
        assert {(row.slowdown, row.saving_ns) for row in rows} == {(1.0, 0.0)}
    assert even.last_stage_share.removed_frac is None and even.worst_workers_share.added_frac is None


def test_a_slow_rank(job: Job) -> None:
    """Rank 1 of 2 computes at half speed: 32 s instead of 17 s; usual is the mean, at which a step takes 24.5 s."""
    slow = job(cost=lambda _step, dp_rank, stage, way: usual_cost(0, 0, stage, way) * (1 + dp_rank))
    assert (slow.actual_ns.tolist(), slow.ideal_ns.tolist()) == ([32 * S] * 2, [24.5 * S] * 2)
    worst, other = slow.by_dp_rank
    assert (worst.key, worst.slowdown, worst.saving_ns) == (1, 32 / 24.5, 7.5 * S)
    assert (other.key, other.slowdown, other.saving_ns) == (0, 1.0, 0.0)
    assert worst.step_slowdown.tolist() == [32 / 24.5] * 2
    assert {row.key.dp_rank for row in slow.by_worker[:2]} == {1}
    assert [worker.dp_rank for worker in slow.worker_scores] == [1, 1, 0, 0]


def test_a_slow_stage(job: Job) -> None:
    """The last of 2 stages takes twice as long: 2 + 1 + 4·6 + 2 = 29 s; usual: 2 + 5 · 4.5."""
    slow = job(cost=lambda _step, _dp, stage, way: usual_cost(0, 0, 0, way) * (1 + stage))
    assert (slow.actual_ns.tolist(), slow.ideal_ns.tolist()) == ([29 * S] * 2, [24.5 * S] * 2)
    share = slow.last_stage_share
    assert (share.repaired_ns, share.alone_ns) == ((2 + 1 + 4 * 4.5 + 2) * S, (2 + 1.5 + 4 * 6 + 3) * S)
    assert share.removed_frac == share.added_frac == pytest.approx(6 / 4.5)
    assert slow.by_stage[0].key == 1
    assert (slow.by_stage[0].slowdown, slow.by_stage[0].saving_ns) == (30.5 / 24.5, 6 * S)


def slow_worker(_step: int, dp_rank: int, stage: int, way: str) -> float:
    """Rank 11, the last stage of the sixth data-parallel rank, takes three times as long."""
    return usual_cost(0, 0, 0, way) * (3 if (dp_rank, stage) == (5, 1) else 1)


def test_one_slow_worker_of_sixteen(job: Job) -> None:
    """2 + 1 + 4 · 9 + 2 = 41 s; usual is the mean of 16 workers, 1.125 of an even one: 2 + 5 · 3.375 s.

    Repaired alone it is the usual one between even ones, slow alone it is among usual ones.
    """
    slow = job(dp_ranks=8, cost=slow_worker)
    assert (slow.actual_ns.tolist(), slow.ideal_ns.tolist()) == ([41 * S] * 2, [18.875 * S] * 2)
    worst, second = slow.by_worker[:2]
    assert worst.key == next(iter(slow.worker_scores)) == stragglers.Worker(dp_rank=5, stage=1, rank=11)
    assert (worst.saving_ns, second.slowdown, second.saving_ns) == (22.5 * S, 1.0, 0.0)
    share = slow.worst_workers_share
    assert (share.repaired_ns, share.alone_ns) == ((2 + 1 + 4 * 3.375 + 2) * S, (2 + 1.125 + 4 * 9 + 2.25) * S)
    assert share.removed_frac == pytest.approx(22.5 / (41 - 18.875))


def test_a_slow_kind_of_operation_in_one_step(job: Job) -> None:
    """In the second step backwards take 4 s: 27 s instead of 17 s; usual 3 s, so 22 s."""
    slow = job(cost=lambda step, _dp, _stage, way: 4.0 if (step, way) == (4, "backward") else usual_cost(0, 0, 0, way))
    assert slow.actual_ns.tolist() == [17 * S, 27 * S] and slow.slowdown == 1.0
    worst = {row.key: row.step_slowdown.tolist() for row in slow.by_op_type}
    assert worst.pop("backward-compute") == [17 / 22, 27 / 22]
    assert all(steps == [1.0, 1.0] for steps in worst.values()) and "forward-pp-comm" in worst


def test_slow_transfers_are_distinguished_from_waiting(job: Job) -> None:
    """One transfer takes 6 s; that its receiver had waited for 1 s before costs nothing."""
    first = (4, 0, "forward", 0)
    slow = job(transfer=lambda step, dp, way, number: 6.0 * ((step, dp, way, number) == first))
    assert slow.actual_ns.tolist() == [17 * S, 23 * S] and slow.ideal_ns.tolist() == [17 * S] * 2
    worst, second = slow.by_op_type[:2]
    assert (worst.key, worst.step_slowdown.tolist()) == ("forward-pp-comm", [1.0, 23 / 17])
    assert (worst.saving_ns, second.slowdown, second.saving_ns) == (3 * S, 1.0, 0.0)


def test_late_starts_are_the_hosts(job: Job) -> None:
    """The optimizer starts 3 s after clipping on all ranks: no operation is slower, the step is longer."""
    rows = job_rows()
    for row in rows:
        if row["optype"] == "optimizer":
            row["start_ts"] += 3.0
    late = job(rows)
    assert late.measured_ns.tolist() == [20 * S] * 2 and late.slowdown == 1.0
    assert late.launch_slowdown == 20 / 17
    assert late.simulation_error_frac.tolist() == [3 / 20] * 2


def test_gradients_reduced_while_computing(job: Job) -> None:
    """The reduce-scatter of the one chunk takes 5 s after its last backward; the rest of the gradients follows it."""
    rows = job_rows()
    done = {row["stage"]: row["start_ts"] for row in rows if row["optype"] == "gc" and row["dp_rank"] == 0}
    for row in rows:
        if row["optype"] == "grads-reduce-scatter":
            row |= {"start_ts": done[row["stage"]], "duration": 5.0}
        elif row["optype"].startswith(("layernorm", "embedding", "optimizer")):
            row["start_ts"] += 5.0
    last = [row for row in rows if row["optype"] == "optimizer-clip-main-grad"]
    rows += [row | {"optype": "separate-grads-all-reduce", "duration": 0.0} for row in last]
    overlapped = job(rows)
    assert overlapped.actual_ns.tolist() == [22 * S] * 2 and overlapped.slowdown == 1.0


costs = st.lists(st.integers(1, 9), min_size=44, max_size=44)


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(costs, st.integers(1, 2), st.integers(1, 4), st.integers(1, 5), st.sampled_from([1, 1, 2]))
def test_jobs_without_launch_delays_are_replayed_exactly(
    job: Job, seconds: list[int], dp_ranks: int, stages: int, microbatches: int, chunks: int
) -> None:
    """Whatever the costs, the replay takes as long as the job's own simulation in the test."""
    chunks = chunks if stages > 1 else 1
    waits = seconds[32:]
    replayed = job(
        dp_ranks=dp_ranks,
        stages=stages,
        microbatches=microbatches,
        chunks=chunks,
        cost=lambda step, dp, stage, way: seconds[(step - 3) * 16 + dp * 8 + stage * 2 + (way == "backward")],
        transfer=lambda step, dp, way, number: waits[(5 * step + 3 * dp + number + len(way)) % len(waits)],
    )
    assert replayed.actual_ns.tolist() == replayed.measured_ns.tolist()
    assert replayed.step_slowdown.mean() > 0
