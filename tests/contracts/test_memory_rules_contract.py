"""From the samples and the end of a run to findings and opportunities about memory, on both databases."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from records import CPU, GPU, MIN, T0, S, batch, ended, held, run_samples, samples, started, steps
from sqlalchemy import select

from tightship_analyzers.fleet import accounting, idleness, ranking
from tightship_analyzers.rules.runs.model_near_memory_limit import RULE as NEAR
from tightship_analyzers.rules.runs.out_of_memory_run import RULE as OUT
from tightship_platform import ingest
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Run
from tightship_platform.queries import findings, opportunities

END = T0 + 2 * MIN
SECONDS = range(T0, END, S)
FULL = int(0.96 * (80 << 30))
OOM = {"exit_code": 1, "error": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."}


def a_run(database: Database, *, stepping: Iterable[int] = SECONDS, device: str = "GPU-1", **parts: Any) -> None:
    """Two minutes on one device, with these records of it."""
    with database.session() as session:
        ingest.apply_run(session, started(workflow="big model"), now=END)
        given = batch(
            devices=[GPU, CPU],
            allocations=[held(device=device)],
            steps=steps(stepping, each=1),
            **parts,
        )
        ingest.apply_batch(session, given, now=END)


def judged(database: Database, **end: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(findings, opportunities) after the run's end, or of a live one."""
    with database.session() as session:
        run = session.scalars(select(Run)).one()
        if end:
            ingest.apply_run(session, ended(workflow="big model", end_ns=END, **end), now=END)
        else:
            run.last_seen_ns = END
        accounting.account_run(session, run, now=END)
        assert idleness.due_runs(session) == [run.id]
        idleness.judge_run(session, run, now=END)
        assert idleness.due_runs(session) == []
    ranking.rank_changed(database, now=END)
    with database.session() as session:
        return findings.list_findings(session), opportunities.list_opportunities(session)


def test_a_run_near_the_limit_is_a_risk_without_a_saving(database: Database) -> None:
    a_run(database, run_samples=run_samples(SECONDS, device="GPU-1", util_frac=0.9, memory_used_bytes=FULL))
    [found], [todo] = judged(database)
    assert (found.rule, found.where) == (NEAR.id, "h1/GPU-1")
    nothing = {"value": None, "low": None, "high": None, "method": None, "share_frac": None, "unit": "ns"}
    assert vars(found.saving) == nothing
    assert vars(found.evidence[-1]) == {
        "kind": "plan",
        "workflow": "big model",
        "command": "tightship offload plan '--workflow=big model'",
    }
    assert (todo.rules, todo.findings, todo.state) == ([NEAR.id], [found.finding], "open")
    assert (todo.recoverable_device_ns, todo.low_ns, todo.high_ns, todo.method) == (None,) * 4
    assert "tightship offload plan '--workflow=big model'" in todo.fix


def test_where_processes_are_not_distinguished_the_whole_device_counts(database: Database) -> None:
    a_run(database, samples=samples(SECONDS, device="GPU-1", util_frac=0.9, memory_used_bytes=FULL))
    [found], _ = judged(database)
    assert found.rule == NEAR.id


@pytest.mark.parametrize(
    ("device", "used"), [("GPU-1", FULL // 2), ("cpu", 8 << 30)], ids=["half full", "a processor's memory"]
)
def test_a_run_with_room_and_one_on_a_processor_are_clean(database: Database, device: str, used: int) -> None:
    mine = run_samples(SECONDS, device=device, util_frac=0.9, cpu_cores=1.0, memory_used_bytes=used)
    a_run(database, device=device, run_samples=mine)
    assert judged(database) == ([], [])


def test_memory_that_is_full_only_before_the_first_step_is_none_of_the_training(database: Database) -> None:
    first = T0 + 100 * S
    early = run_samples(range(T0, first, S), device="GPU-1", util_frac=0.9, memory_used_bytes=FULL)
    late = run_samples(range(first, END, S), device="GPU-1", util_frac=0.9, memory_used_bytes=1 << 30)
    a_run(database, stepping=(), run_samples=[*early, *late])
    with database.session() as session:
        for one in steps(range(first, END, S)):
            one.first_step_ns = first
            ingest.apply_batch(session, batch(steps=[one]), now=END)
    assert judged(database) == ([], [])


def test_a_run_that_died_of_memory_lost_its_start_and_its_end(database: Database) -> None:
    mine = run_samples(SECONDS, device="GPU-1", util_frac=0.9, memory_used_bytes=FULL)
    a_run(database, stepping=range(T0, T0 + MIN, S), run_samples=mine)
    [found], [todo] = judged(database, **OOM)
    # Steps end between the first second and 59.5 s; the rest of the two minutes is lost for certain.
    lost = 2 * MIN - (59 * S + S // 2 - S)
    assert (found.rule, found.trace) == (OUT.id, None)
    assert vars(found.saving) == {
        "value": lost, "low": lost, "high": 2 * MIN, "unit": "ns", "method": "bound", "share_frac": lost / (2 * MIN),
    }  # fmt: skip
    assert found.evidence[0].text == f"It ended with {OOM['error']}"
    assert (todo.rules, todo.recoverable_device_ns, todo.high_ns) == ([OUT.id], lost, 2 * MIN)
    assert "tightship offload plan '--workflow=big model'" in todo.fix


def test_a_run_that_failed_otherwise_is_clean(database: Database) -> None:
    a_run(database)
    assert judged(database, exit_code=1, error="ValueError: no") == ([], [])


def test_a_run_that_no_agent_saw_is_found_without_a_saving(database: Database) -> None:
    with database.session() as session:
        ingest.apply_run(session, started(workflow="big model"), now=END)
    [found], [todo] = judged(database, **OOM)
    assert (found.rule, found.saving.value, todo.recoverable_device_ns) == (OUT.id, None, None)
