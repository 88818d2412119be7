"""The rule that compares ranks: one rank is late by a known time in every step."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_job import MS, US, GpuJob
from rule_jobs import work

from tightship_analyzers.analysis.engine import apply_rules, failures
from tightship_analyzers.analysis.from_files import analyze_paths
from tightship_analyzers.analysis.wanted import Wanted
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.findings.model import Finding
from tightship_analyzers.ranks.arrivals import collective_arrivals
from tightship_analyzers.ranks.compared_ranks import ComparedRanks
from tightship_analyzers.ranks.skew import ArrivalSkew, arrival_skew
from tightship_analyzers.rules.catalogue import RANK_RULES, TRACE_RULES
from tightship_analyzers.rules.communication.straggling_rank import MIN_STEPS
from tightship_platform.results.not_applicable import NotApplicable

RANKS, STEPS = 4, 6
LATE_NS = 500 * US


def job_of(rank: int, late: dict[int, int], collectives: int = 1, steps: int = STEPS) -> GpuJob:
    """Each step ends with collectives; at the last of them the rank `late[step]` arrives LATE_NS after the others."""
    job = GpuJob(rank=rank)
    for step in range(steps):
        begun = job.now_ns
        work(job)
        job.drain()
        for _ in range(collectives - 1):
            job.op("c10d::allreduce_", (100 * US, "ncclDevKernel_AllReduce_Sum_f32"), stream=20)
            job.drain()
        waits_ns = LATE_NS if step in late else 0
        if late.get(step) == rank:
            job.pause(LATE_NS)
            waits_ns = 0
        job.op("c10d::allreduce_", (100 * US + waits_ns, "ncclDevKernel_AllReduce_Sum_f32"), stream=20)
        job.drain()
        job.step_of(begun)
    return job


def skew_of(folder: Path, late: dict[int, int], steps: int = STEPS, collectives: int = 1) -> ArrivalSkew:
    traces = {}
    for rank in range(RANKS):
        (folder / str(rank)).mkdir()
        traces[rank] = job_of(rank, late, collectives, steps).read(folder / str(rank))
    skew = arrival_skew(
        {rank: collective_arrivals(trace, Facts(trace)[Steps].bounds_ns) for rank, trace in traces.items()}
    )
    assert not isinstance(skew, NotApplicable)
    return skew


def judge_ranks(ranks: ComparedRanks) -> list[Finding]:
    found, not_judged = apply_rules(RANK_RULES, lambda rule: rule.judge(ranks), "ranks")
    assert not_judged == {}
    return found


def why_not(ranks: ComparedRanks) -> str:
    found, not_judged = apply_rules(RANK_RULES, lambda rule: rule.judge(ranks), "ranks")
    assert found == [] and not failures(not_judged)
    return not_judged["straggling-rank"].reason


def findings(folder: Path, late: dict[int, int], steps: int = STEPS) -> list[Finding]:
    step_ns = dict.fromkeys(range(RANKS), 3 * MS)
    return judge_ranks(ComparedRanks(skew=skew_of(folder, late, steps), step_ns=step_ns))


def test_the_late_rank_is_found_and_priced(tmp_path: Path) -> None:
    [finding] = findings(tmp_path, dict.fromkeys(range(STEPS), 2))
    assert (finding.rule, finding.rank, finding.place) == ("straggling-rank", 2, "rank 2")
    assert finding.saving.value == pytest.approx(LATE_NS, rel=0.01)
    assert finding.saving.low == 0 <= finding.saving.value <= finding.saving.high
    assert "6 of 6 collectives" in finding.evidence[0].text


def test_ranks_that_are_late_in_turn_are_no_finding(tmp_path: Path) -> None:
    assert findings(tmp_path, {step: step % RANKS for step in range(STEPS)}) == []


def test_ranks_that_come_together_are_no_finding(tmp_path: Path) -> None:
    assert findings(tmp_path, {}) == []


def test_a_single_step_does_not_tell(tmp_path: Path) -> None:
    skew = skew_of(tmp_path, dict.fromkeys(range(STEPS), 2), steps=MIN_STEPS - 1)
    assert "steps" in why_not(ComparedRanks(skew=skew, step_ns=dict.fromkeys(range(RANKS), 3 * MS)))


def test_late_at_one_of_many_collectives_in_each_step_is_a_habit(tmp_path: Path) -> None:
    skew = skew_of(tmp_path, dict.fromkeys(range(STEPS), 2), collectives=8)
    [finding] = judge_ranks(ComparedRanks(skew=skew, step_ns=dict.fromkeys(range(RANKS), 4 * MS)))
    assert finding.rank == 2
    assert finding.saving.value == pytest.approx(LATE_NS, rel=0.01)


def test_late_once_among_ranks_that_otherwise_come_together_is_no_finding(tmp_path: Path) -> None:
    skew = skew_of(tmp_path, {3: 2}, collectives=8)
    assert judge_ranks(ComparedRanks(skew=skew, step_ns=dict.fromkeys(range(RANKS), 4 * MS))) == []


def test_without_steps_it_does_not_apply(tmp_path: Path) -> None:
    traces = {rank: job_of(rank, {}).read(tmp_path) for rank in range(2)}
    skew = arrival_skew({rank: collective_arrivals(trace) for rank, trace in traces.items()})
    assert not isinstance(skew, NotApplicable)
    assert "steps" in why_not(ComparedRanks(skew=skew, step_ns={}))


def test_analyze_says_why_it_does_not_apply(tmp_path: Path) -> None:
    for rank in range(RANKS):
        (tmp_path / f"rank{rank}.json").write_bytes(job_of(rank, {}, steps=MIN_STEPS - 1).text())
    result = analyze_paths([str(tmp_path)])
    assert "steps" in result.not_judged["straggling-rank"]
    assert result.rules == len(TRACE_RULES) + len(RANK_RULES)
    alone = analyze_paths([str(tmp_path / "rank0.json")])
    assert "straggling-rank" not in alone.not_judged and alone.rules == len(TRACE_RULES)


def test_analyze_names_it_for_a_folder_of_ranks(tmp_path: Path) -> None:
    for rank in range(RANKS):
        (tmp_path / f"rank{rank}.json").write_bytes(job_of(rank, dict.fromkeys(range(STEPS), 2)).text())
    result = analyze_paths([str(tmp_path)])
    [finding] = [one for one in result.findings if one.rule == "straggling-rank"]
    assert finding.rank == 2 and finding.of_ranks
    assert finding.saving.value == pytest.approx(LATE_NS, rel=0.01)
    assert result.across_ranks is not None
    [late] = [row.late_by_step_ns for row in result.across_ranks.ranks if row.rank == 2]
    assert late is not None and len(late) == result.across_ranks.steps
    assert late == pytest.approx([LATE_NS] * len(late), rel=0.01)
    step_ns = result.ranks[2].summary.step_ns.mean
    untraced = analyze_paths([str(tmp_path)], wanted=Wanted(untraced_step_ns=step_ns * 4 // 5))
    [reported] = [finding for finding in untraced.findings if finding.rule == "straggling-rank"]
    assert reported.saving.value == pytest.approx(LATE_NS * 4 / 5, rel=0.01), "in steps that nobody recorded"
