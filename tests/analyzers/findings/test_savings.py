"""What becomes of savings: overlap, profiling overhead, the pace outside of captures, several ranks."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gpu_job import MS, GpuJob
from hypothesis import given
from hypothesis import strategies as st
from rank_parts import part_of

from tightship_analyzers import trace as traces
from tightship_analyzers.analysis.join_ranks import merge_findings
from tightship_analyzers.analysis.judge import judge_trace
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.recording_cost import RecordingCost
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.model import Finding, Saving
from tightship_analyzers.findings.overlap import merge_claims
from tightship_analyzers.findings.profiling_overhead import correct_for_overhead
from tightship_analyzers.fleet.untraced_steps import median_step
from tightship_analyzers.trace.intervals import Intervals
from tightship_platform.ingest.actions.steps import Counted
from tightship_platform.vocabulary import Method, SavingUnit
from tightship_platform.wire import STRETCHED

RECORDED = Path(__file__).parents[2] / "data" / "traces"
BOUNDS = np.array([0, 1000, 2000], dtype=np.int64)
STEPS = Window(BOUNDS, BOUNDS, 0, True, 0, 2000)


def finding(rule: str, *claims: tuple[int, int], low: int = 0, high: int = 0, place: str = "") -> Finding:
    spans = Intervals.of([start for start, _ in claims], [end for _, end in claims])
    return Finding(
        rule=rule,
        title="",
        place=place,
        fix="",
        saving=Saving.per_step(2, value_ns=spans.measure_ns, low_ns=low, high_ns=high),
        unit=SavingUnit.STEP,
        share_frac=spans.measure_ns / STEPS.window_ns,
        claims=spans,
    )


class TestSaving:
    def test_low_and_high_enclose_the_value(self) -> None:
        assert Saving.per_step(2, value_ns=10, low_ns=20, high_ns=0) == Saving(value=5, low=5, high=5)

    @pytest.mark.parametrize(("value", "low", "high"), [(1, 2, 3), (2, -1, 3), (4, 1, 3)])
    def test_one_out_of_order_is_a_defect(self, value: int, low: int, high: int) -> None:
        with pytest.raises(ValueError, match="out of order"):
            Saving(value=value, low=low, high=high)


class TestOverlap:
    def test_overlapping_findings_are_measured_together(self) -> None:
        both = [finding("a", (0, 600), low=200, high=800), finding("b", (400, 1000), low=400, high=1200)]
        [claim] = merge_claims(both, STEPS)
        assert claim.rules == ["a", "b"]
        assert claim.saving_ns == 500, "1000 of 2000 ns, over two steps; not 600"
        assert (claim.low_ns, claim.high_ns) == (200, 1000)
        assert claim.share_frac == 0.5

    def test_disjoint_findings_stay_apart_the_larger_first(self) -> None:
        apart = merge_claims([finding("a", (0, 100)), finding("b", (100, 400)), finding("c", (1500, 1600))], STEPS)
        assert [claim.rules for claim in apart] == [["b"], ["a"], ["c"]]

    def test_overlap_is_transitive(self) -> None:
        chain = [finding("a", (0, 200)), finding("c", (300, 500)), finding("b", (100, 400))]
        [claim] = merge_claims(chain, STEPS)
        assert claim.rules == ["a", "b", "c"] and claim.saving_ns == 250

    @given(
        st.lists(
            st.lists(st.tuples(st.integers(0, 1999), st.integers(1, 300)), min_size=1, max_size=4),
            min_size=1,
            max_size=5,
        )
    )
    def test_the_joint_saving_is_the_measure_of_the_union(self, claims: list[list[tuple[int, int]]]) -> None:
        found = [
            finding(f"r{n}", *((start, min(2000, start + size)) for start, size in spans))
            for n, spans in enumerate(claims)
        ]
        merged = merge_claims(found, STEPS)
        union = Intervals.none()
        for one in found:
            union = union | one.claims
        assert sum(claim.share_frac for claim in merged) == pytest.approx(union.measure_ns / 2000)
        assert sum(claim.saving_ns for claim in merged) <= STEPS.mean_ns
        for claim in merged:
            assert 0 <= claim.low_ns <= claim.saving_ns <= claim.high_ns <= STEPS.mean_ns


class TestProfilingOverhead:
    def test_the_added_time_may_sit_anywhere(self) -> None:
        reported = correct_for_overhead(finding("a", (0, 1200), low=1000, high=1400), traced_ns=1000, untraced_ns=800)
        assert (reported.saving.value, reported.saving.low, reported.saving.high) == (480, 300, 700)
        assert reported.share_frac == 0.6, "the share of the step stays"
        assert "25.0 %" in reported.evidence[-1].text

    @pytest.mark.parametrize("untraced", [None, 0, 1000, 1500])
    def test_nothing_to_correct(self, untraced: int | None) -> None:
        one = finding("a", (0, 1200))
        assert correct_for_overhead(one, traced_ns=1000, untraced_ns=untraced) is one

    @given(st.integers(1, 1000), st.integers(0, 1000), st.integers(0, 1000), st.integers(667, 1000))
    def test_never_more_than_the_real_step(self, value: int, low: int, more: int, untraced: int) -> None:
        saving = Saving(value=value, low=min(low, value), high=min(1000, value + more))
        reported = correct_for_overhead(
            replace(finding("a", (0, 1)), saving=saving), traced_ns=1000, untraced_ns=untraced
        ).saving
        assert 0 <= reported.low <= reported.value <= reported.high <= untraced

    def test_where_it_may_sit_on_a_cpu_is_what_the_claims_hold_of_what_was_recorded(self) -> None:
        cost = RecordingCost(
            recorded_ns=(np.array([100, 700, 1300, 1900]), np.array([100, 200, 300, 400, 500, 1000, 1500, 1700, 1800])),
            working=Intervals.of([0, 1000], [400, 2000]),
            window_ns=2000,
        )
        one = finding("a", (0, 1200), low=1200, high=1200)
        # Half of the operators, 6 of 9 calls, 600 of 1400 ns in operators, 1200 of 2000 ns.
        assert cost.shares(one.claims) == pytest.approx((600 / 1400, 6 / 9))
        assert cost.shares(Intervals.one(0, 2000)) == (1, 1)
        reported = correct_for_overhead(one, traced_ns=1000, untraced_ns=800, cost=cost)
        assert (reported.saving.low, reported.saving.value, reported.saving.high) == (600 - 134, 480, 600 - 85)
        assert "42.9 % to 66.7 %" in reported.evidence[-1].text

    def test_a_job_on_the_cpu_has_a_narrower_interval(self) -> None:
        trace = traces.open(RECORDED / "single_tensor.json.gz")
        [plain] = judge_trace(trace).findings
        facts = Facts(trace)
        traced = facts[Steps].mean_ns
        untraced = traced * 9 // 10
        [known] = judge_trace(trace, untraced_step_ns=untraced).findings
        unknown = correct_for_overhead(plain, traced, untraced)
        assert unknown.saving.low < known.saving.low <= known.saving.value <= known.saving.high <= unknown.saving.high
        assert known.saving.value == unknown.saving.value, "its share of the step stays"

    def test_calls_that_another_recording_lent_cost_this_one_nothing(self) -> None:
        trace = traces.open(RECORDED / "loop.json.gz")
        frames = trace.frames
        lent = replace(trace, frames=replace(frames, python_id=np.full(len(frames), -1)))
        assert len(Facts(trace)[RecordingCost].recorded_ns) == 2
        assert len(Facts(lent)[RecordingCost].recorded_ns) == 1

    def test_beside_a_device_nobody_knows(self, tmp_path: Path) -> None:
        job = GpuJob()
        for _ in range(2):
            begun = job.now_ns
            job.op("aten::mm", (MS, "gemm"))
            job.wait()
            job.step_of(begun)
        facts = Facts(job.read(tmp_path))
        assert facts.find(Steps) is not None and facts.find(RecordingCost) is None

    def test_claims_are_in_unrecorded_steps_too(self) -> None:
        trace = traces.open(RECORDED / "starved.json.gz")
        plain = judge_trace(trace)
        most = plain.summary.step_ns.mean * 4 // 5
        reported = judge_trace(trace, untraced_step_ns=most)
        [before], [after] = plain.summary.claims, reported.summary.claims
        assert after.share_frac == before.share_frac
        assert after.saving_ns == reported.findings[0].saving.value == pytest.approx(before.saving_ns * 4 / 5, abs=2)
        assert after.high_frac <= 1

    def test_a_step_that_recording_made_much_longer_names_no_saving(self) -> None:
        one = finding("a", (0, 600))
        untraced = math.ceil(1000 / STRETCHED)
        assert correct_for_overhead(one, traced_ns=1000, untraced_ns=untraced).saving.value > 0
        bare = correct_for_overhead(one, traced_ns=1000, untraced_ns=untraced - 1)
        assert (bare.saving, bare.share_frac) == (Saving(value=0, low=0, high=0), 0.0)
        assert (bare.place, bare.claims) == (one.place, one.claims), "it stays, and what it covers"
        assert "times as long" in bare.evidence[-1].text

    def test_what_fills_a_stretched_step_is_sure_but_for_what_was_added(self) -> None:
        one = finding("a", (0, 1900), low=1900, high=1900)
        saving = correct_for_overhead(one, traced_ns=1000, untraced_ns=500).saving
        assert saving == Saving(value=475, low=450, high=500, method=Method.BOUND), "the rest takes 50 at most"

    def test_a_trace_that_recording_stretched_has_bounds_from_nothing(self) -> None:
        trace = traces.open(RECORDED / "starved.json.gz")
        plain = judge_trace(trace)
        reported = judge_trace(trace, untraced_step_ns=plain.summary.step_ns.mean // 3)
        assert [one.rule for one in reported.findings] == [one.rule for one in plain.findings]
        [saving] = [one.saving for one in reported.findings]
        assert (saving.method, saving.low) == (Method.BOUND, 0)
        assert 0 < saving.value <= saving.high <= plain.summary.step_ns.mean // 3
        assert reported.summary.unclaimed_ns == plain.summary.unclaimed_ns

    def test_what_a_rule_adds_at_its_high_end_shrinks_with_a_stretched_step(self) -> None:
        trace = traces.open(RECORDED / "rare_checkpoint.json.gz")
        said = judge_trace(trace)
        [plain] = said.findings
        assert plain.saving.high > 1.5 * plain.saving.value
        [reported] = judge_trace(trace, untraced_step_ns=said.summary.step_ns.mean // 2).findings
        assert reported.saving.high <= plain.saving.high // 2 + 1


def counted(*spans: tuple[int, int], first: int | None = None) -> list[Counted]:
    """Buckets of (steps, end of the last one); `first`: end of the first step ever, reported by every bucket."""
    starts = [0, *(last for _, last in spans)]
    return [Counted(start, steps, first, last) for start, (steps, last) in zip(starts, spans, strict=False)]


class TestPace:
    def test_the_median_step_outside_of_recordings(self) -> None:
        steady = counted(*((2, t + 8) for t in range(0, 100, 10)))
        assert median_step(steady, []) == 5
        slow = counted(*((1 if 40 <= t < 70 else 2, t + 8) for t in range(0, 100, 10)))
        assert median_step(slow, [(41, 69)]) == 5
        assert median_step(slow[:5], [(41, 69)], min_steps=6) == 5

    def test_steps_that_touch_a_recording_do_not_count(self) -> None:
        assert median_step(counted((5, 100), (20, 200)), [(150, 160)]) is None
        assert median_step(counted((5, 100), (20, 200)), [(200, 210)]) == 5

    def test_the_first_bucket_begins_with_the_first_step(self) -> None:
        assert median_step(counted((21, 300), first=100), []) == 10
        assert median_step(counted((21, 300), (20, 500), first=-7), []) == 10, "the first step was long ago"

    def test_a_stall_does_not_move_it(self) -> None:
        assert median_step(counted(*((2, t + 8) for t in range(0, 100, 10)), (2, 508)), []) == 5

    def test_too_few_steps_say_nothing(self) -> None:
        assert median_step(counted((2, 8), (2, 18)), []) is None
        assert median_step([Counted(0, 20, None, None)] * 3, []) is None


class TestRanks:
    def test_the_same_defect_on_all_ranks_is_reported_once(self) -> None:
        [one] = judge_trace(traces.open(RECORDED / "starved.json.gz")).findings
        worse = replace(one, saving=Saving(value=10**9, low=0, high=10**9), share_frac=1.0)
        [found] = merge_findings([part_of(rank, [worse if rank == 2 else one]) for rank in range(4)])
        assert (found.saving.value, found.rank, found.trace) == (10**9, 2, "r2")
        assert "4 of 4 ranks (0, 1, 2, 3)" in found.evidence[-1].text

    def test_one_rank_needs_no_remark(self) -> None:
        part = part_of(0)
        assert merge_findings([part]) == list(part.findings)

    def test_other_places_are_other_findings(self) -> None:
        [one] = judge_trace(traces.open(RECORDED / "starved.json.gz")).findings
        merged = merge_findings([part_of(0), part_of(1, [replace(one, place="other.py:1 (f)")])])
        assert len(merged) == 2
