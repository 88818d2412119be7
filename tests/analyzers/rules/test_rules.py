"""Every rule on real recordings: one that it must find, ones that it must leave alone."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from rule_jobs import JOBS

from tightship_analyzers import trace as traces
from tightship_analyzers.analysis.judge import Verdict, judge_trace
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.findings.evidence import MAX_SPANS
from tightship_analyzers.findings.model import Failed, Finding
from tightship_analyzers.rules.catalogue import RULES, RUN_RULES, TRACE_RULES
from tightship_analyzers.rules.host import loop_indexing, single_tensor_optimizer, starved_input, synchronous_checkpoint
from tightship_platform.results.codec import as_json, decode
from tightship_platform.results.evidence import Evidence
from tightship_platform.vocabulary import Method

RECORDED = Path(__file__).parents[2] / "data" / "traces"
FIXTURES = sorted(path.name.removesuffix(".json.gz") for path in RECORDED.glob("*.json.gz"))

TRIGGERS = {
    "starved-input": ("starved", "slow_workers"),
    "synchronous-checkpoint": ("checkpoints", "rare_checkpoint"),
    "single-tensor-optimizer": ("single_tensor",),
    "loop-indexing": ("loop", "loop_without_gradient"),
}
"""Recordings in which the rule finds something, and finds more than any other rule does."""
ELSEWHERE = {"device-held-idle": "../facts/test_held_idle.py", "straggling-rank": "test_straggling_rank.py"}
ELSEWHERE |= dict.fromkeys(("model-near-memory-limit", "out-of-memory-run"), "test_memory_rules.py")
ELSEWHERE |= dict.fromkeys(JOBS, "test_gpu_rules.py")
"""Rules whose fixtures are made in their own file: they need an accelerator, or samples."""
CLEAN = {
    "starved-input": ("fed", "healthy"),
    "synchronous-checkpoint": ("healthy", "starved"),
    "single-tensor-optimizer": ("fused", "healthy"),
    "loop-indexing": ("unbind", "layers"),
}
MIN_FRAC = {
    "starved-input": starved_input.MIN_STEP_FRAC,
    "synchronous-checkpoint": synchronous_checkpoint.MIN_STEP_FRAC,
    "single-tensor-optimizer": single_tensor_optimizer.MIN_STEP_FRAC,
    "loop-indexing": loop_indexing.MIN_STEP_FRAC,
}


@functools.cache
def verdict(name: str) -> Verdict:
    return judge_trace(traces.open(RECORDED / f"{name}.json.gz"))


def as_the_rule_gives_it(name: str) -> Finding:
    """The checkpoint finding before it is known that its fix needs cores that may not be idle."""
    [finding] = synchronous_checkpoint.judge(Facts(traces.open(RECORDED / f"{name}.json.gz")))  # type: ignore[union-attr]
    return finding


def test_every_rule_has_a_triggering_and_a_clean_fixture() -> None:
    assert set(TRIGGERS) | set(ELSEWHERE) == {rule.id for rule in RULES}
    assert set(TRIGGERS) == set(CLEAN)
    for file in ELSEWHERE.values():
        assert (Path(__file__).parent / file).exists()


@pytest.mark.parametrize(("rule", "fixture"), [(rule, name) for rule, names in TRIGGERS.items() for name in names])
def test_a_rule_finds_its_defect_first(rule: str, fixture: str) -> None:
    top = verdict(fixture).findings[0]
    assert top.rule == rule
    assert top.place.startswith("jobs.py:"), top.place
    assert top.share_frac >= MIN_FRAC[rule]
    assert top.saving.value > 0
    assert top.unit == "ns/step"


@pytest.mark.parametrize(("rule", "fixture"), [(rule, name) for rule, names in CLEAN.items() for name in names])
def test_a_rule_leaves_clean_jobs_alone(rule: str, fixture: str) -> None:
    assert rule not in {finding.rule for finding in verdict(fixture).findings}


def test_a_healthy_job_has_no_finding_at_all() -> None:
    assert verdict("healthy").findings == []


@pytest.mark.parametrize("fixture", FIXTURES)
def test_what_holds_for_every_recording(fixture: str) -> None:
    said = verdict(fixture)
    assert not [why for why in said.not_judged.values() if isinstance(why, Failed)]
    assert {finding.rule for finding in said.findings} | set(said.not_judged) <= {rule.id for rule in TRACE_RULES}
    assert sum(said.summary.buckets.values()) == said.summary.window_ns > 0
    for finding in said.findings:
        saving, steps = finding.saving, said.summary.steps
        assert 0 <= saving.low <= saving.value <= saving.high <= said.summary.step_ns.max
        # Of a simulation it is what the steps lose, with what can begin earlier.
        exact = finding.saving.method is not Method.SIMULATED
        assert saving.value == pytest.approx(finding.claims.measure_ns // steps, rel=0 if exact else 0.05)
        assert exact or finding.share_frac == pytest.approx(saving.value / said.summary.step_ns.mean)
        assert not exact or finding.share_frac == pytest.approx(finding.claims.measure_ns / said.summary.window_ns)


@pytest.mark.parametrize("fixture", [name for names in TRIGGERS.values() for name in names])
def test_evidence_can_be_kept_and_drawn(fixture: str) -> None:
    evidence = verdict(fixture).findings[0].evidence
    assert decode(list[Evidence], [as_json(entry) for entry in evidence]) == list(evidence)
    gap = next(entry for entry in evidence if entry.kind == "gap")
    assert gap.start_ns < gap.end_ns
    assert [lane.lane for lane in gap.lanes] == ["device", "host", "frames"]
    for lane in gap.lanes:
        assert len(lane.spans) <= MAX_SPANS
        for span in lane.spans:
            assert gap.start_ns - span.end_ns < gap.end_ns - gap.start_ns and span.start_ns <= span.end_ns
            assert span.depth >= 0
    assert gap.lanes[2].spans, "recorded with stacks, so there are frames"
    assert any(entry.kind == "fact" and entry.text for entry in evidence)
    change = next(entry for entry in evidence if entry.kind == "change")
    assert change.before != change.after


def test_spans_of_a_lane_nest_without_overlap_at_equal_depth() -> None:
    gap = next(entry for entry in verdict("starved").findings[0].evidence if entry.kind == "gap")
    for lane in gap.lanes:
        by_depth: dict[int, int] = {}
        for span in sorted(lane.spans, key=lambda span: span.start_ns):
            assert span.start_ns >= by_depth.get(span.depth, 0)
            by_depth[span.depth] = span.end_ns


def test_the_loader_without_workers_is_distinguished_from_the_one_with_too_few() -> None:
    assert "num_workers=" in verdict("starved").findings[0].fix
    assert "Double" in verdict("slow_workers").findings[0].fix
    assert verdict("slow_workers").findings[0].saving.low == 0, "a trace does not show free cores"
    assert "(decode)" in verdict("starved").findings[0].place, "where the time goes, not where the loop is"


def test_a_single_save_says_nothing_about_how_often() -> None:
    rare, often = as_the_rule_gives_it("rare_checkpoint"), as_the_rule_gives_it("checkpoints")
    assert rare.saving.low == 0
    assert rare.saving.high == pytest.approx(2 * rare.saving.value, rel=0.01)
    assert 0 < often.saving.low < often.saving.value < often.saving.high


def test_the_fused_fix_is_named_for_the_optimizer_that_is_used() -> None:
    assert "Adam(" in verdict("single_tensor").findings[0].fix
    assert "fused=True" in verdict("single_tensor").findings[0].fix


def test_both_kinds_of_loop() -> None:
    indexed, cheap = verdict("loop").findings[0], verdict("loop_without_gradient").findings[0]
    assert "unbind" in indexed.fix and "one operator" in cheap.fix
    for saving in (indexed.saving, cheap.saving):
        assert saving.low == 0 < saving.value <= saving.high, "a file alone cannot tell what recording added on a CPU"


def test_without_stacks_rules_say_what_they_need() -> None:
    trace = traces.open(RECORDED / "checkpoints.json.gz")
    blind = judge_trace(_without(trace, "frames"))
    for rule in ("synchronous-checkpoint", "loop-indexing"):
        assert "needs Python stacks" in blind.not_judged[rule].reason
    assert sum(blind.summary.buckets.values()) == blind.summary.window_ns
    assert blind.summary.buckets["unexplained"] > 0, "a long silence without stacks could be anything"


def test_a_rule_that_breaks_does_not_cost_the_others(caplog: pytest.LogCaptureFixture) -> None:
    from dataclasses import replace

    def broken(_: object) -> list[object]:
        raise ZeroDivisionError

    rules = (replace(TRACE_RULES[0], id="broken", judge=broken, needs=()), *TRACE_RULES)
    said = judge_trace(traces.open(RECORDED / "starved.json.gz"), rules=rules)
    assert said.findings[0].rule == "starved-input"
    assert isinstance(said.not_judged["broken"], Failed)
    assert any("ZeroDivisionError" in warning for warning in said.summary.warnings)
    assert "broken" in caplog.text


def test_rules_on_samples_are_no_rules_on_traces() -> None:
    assert not set(TRACE_RULES) & set(RUN_RULES)


def _without(trace: traces.Trace, table: str) -> traces.Trace:
    from dataclasses import replace

    import numpy as np

    return replace(trace, **{table: getattr(trace, table).take(np.array([], dtype=np.int64))})
