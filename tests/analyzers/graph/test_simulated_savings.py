"""Findings priced by re-simulation: alone, together, and where the graph is not to be trusted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from device_program import Command, Kernel, Recorded, Sync, Think, changed, run

from tightship_analyzers.analysis.judge import judge_facts
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.simulation.dependency_graph import MAX_ANCHORED_FRAC, DependencyGraph
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.findings.model import Finding, Judgement, Saving, TraceRule
from tightship_analyzers.findings.savings import saving_without, simulated
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Trace
from tightship_platform.units import format_ns
from tightship_platform.vocabulary import Method

US = 1_000
STEPS = 4
STEP: tuple[Command, ...] = (
    Kernel(500 * US),
    Kernel(50 * US),
    Sync(7, "one"),
    Sync(7, "two"),
    Think(200 * US, "slow"),
    Kernel(300 * US),
    Sync(),
    Kernel(10 * US),
    Sync(),
)


def rule(name: str, recorded: Recorded, *, priced: bool = True) -> TraceRule:
    """Finds what is tagged with its name, and claims all of the host's time in it, half of it for sure."""

    def judge(facts: Facts) -> Judgement:
        steps, spans = facts[Steps], recorded.at(name)
        kind = Edits.without_host if name == "slow" else Edits.without_syncs
        yield Finding(
            rule=name,
            title=name,
            place="",
            fix="",
            saving=Saving.per_step(
                steps.count, value_ns=spans.measure_ns, low_ns=spans.measure_ns // 2, high_ns=spans.measure_ns
            ),
            unit="ns/step",
            share_frac=spans.measure_ns / steps.window_ns,
            claims=spans if name == "slow" else Intervals.of_table(facts.trace.device_events),
            without=kind(steps.tid, spans) if priced else None,
        )

    return TraceRule(id=name, needs=(), title=name, fix="", judge=judge, page="")


def unlinked(trace: Trace) -> Trace:
    """The same recording, of which the profiler lost every other launch."""
    events = trace.device_events
    launch = np.where(np.arange(len(events)) % 2 == 0, -1, events.launch)
    return replace(trace, device_events=replace(events, launch=launch))


def test_a_finding_that_says_what_goes_is_simulated(tmp_path: Path) -> None:
    recorded = run(STEP, STEPS)
    facts = Facts(recorded.read(tmp_path))
    [finding] = judge_facts(facts, rules=(rule("slow", recorded),)).findings
    truth = recorded.window_ns - run(changed(STEP, "slow", 0), STEPS).window_ns
    assert finding.saving.method is Method.SIMULATED
    assert finding.saving.value == truth // STEPS
    assert finding.saving.low == finding.saving.value // 2, "what the rule does not know stays"
    assert finding.share_frac == pytest.approx(truth / facts[Steps].window_ns, rel=1e-3)
    assert facts.costs["DependencyGraph"].used_by == ["slow", Facts.UNASKED]


def test_a_low_end_that_was_measured_is_not_raised_by_the_simulation(tmp_path: Path) -> None:
    recorded = run(STEP, STEPS)
    facts = Facts(recorded.read(tmp_path))
    [finding] = judge_facts(facts, rules=(rule("slow", recorded),)).findings
    measured = Saving(value=finding.saving.value // 10, low=finding.saving.value // 10, high=finding.saving.value)
    again = simulated(facts, replace(finding, saving=measured))
    assert (again.saving.low, again.saving.value) == (measured.low, finding.saving.value)


def test_what_comes_back_beyond_the_claim_has_its_line(tmp_path: Path) -> None:
    """The idle time that is claimed is less than what can begin earlier once its cause is gone."""
    recorded = run(STEP, STEPS)
    facts = Facts(recorded.read(tmp_path))
    [finding] = judge_facts(facts, rules=(rule("slow", recorded, priced=False),)).findings
    whole = recorded.at("slow")
    for part, explained in ((4, True), (1, False)):
        bound = Saving(value=whole.measure_ns // STEPS // part, low=0, high=whole.measure_ns // STEPS)
        priced = simulated(facts, replace(finding, saving=bound, without=Edits.without_host(facts[Steps].tid, whole)))
        more_ns = priced.saving.value - bound.value
        lines = [entry.text for entry in priced.evidence if entry.kind == "fact"]
        assert (f"{format_ns(more_ns)} of it is what can begin earlier as well once this is gone" in lines) is explained


def test_without_such_a_finding_no_rule_asks_for_the_graph(tmp_path: Path) -> None:
    recorded = run(STEP, STEPS)
    facts = Facts(recorded.read(tmp_path))
    [finding] = judge_facts(facts, rules=(rule("slow", recorded, priced=False),)).findings
    assert finding.saving.method is Method.BOUND
    assert facts.costs["DependencyGraph"].used_by == [Facts.UNASKED], "the summary: does it give the recorded steps?"


def test_findings_that_claim_the_same_time_are_simulated_together(tmp_path: Path) -> None:
    recorded = run(STEP, STEPS)
    rules = (rule("one", recorded), rule("two", recorded))
    verdict = judge_facts(Facts(recorded.read(tmp_path)), rules=rules)
    truth = recorded.window_ns - run(changed(changed(STEP, "one", 0), "two", 0), STEPS).window_ns
    [claim] = verdict.summary.claims
    assert claim.rules == ["one", "two"]
    assert claim.saving_ns == truth // STEPS
    assert claim.saving_ns > 10 * max(finding.saving.value for finding in verdict.findings)
    assert claim.method == "simulated"
    assert claim.low_ns <= claim.saving_ns <= claim.high_ns


def test_all_findings_together_are_one_simulation(tmp_path: Path) -> None:
    recorded = run(STEP, STEPS)
    rules = (rule("one", recorded), rule("two", recorded), rule("slow", recorded))
    verdict = judge_facts(Facts(recorded.read(tmp_path)), rules=rules)
    without = changed(changed(changed(STEP, "one", 0), "two", 0), "slow", 0)
    truth = recorded.window_ns - run(without, STEPS).window_ns
    assert verdict.summary.joint_saving_frac == pytest.approx(truth / verdict.summary.window_ns, rel=0.01)
    assert verdict.summary.joint_saving_frac < sum(claim.share_frac for claim in verdict.summary.claims)


def test_what_cannot_be_reproduced_stays_a_bound_and_says_why(tmp_path: Path) -> None:
    recorded = run(STEP, STEPS)
    facts = Facts(unlinked(recorded.read(tmp_path)))
    assert facts[DependencyGraph].anchored_frac > MAX_ANCHORED_FRAC
    [finding] = judge_facts(facts, rules=(rule("slow", recorded),)).findings
    assert finding.saving.method is Method.BOUND
    assert "lacks the launch" in finding.evidence[-1].text


def test_without_steps_the_recording_is_one_window(tmp_path: Path) -> None:
    recorded = run((*STEP,), STEPS)
    recorded.made.events = [event for event in recorded.made.events if not event["name"].startswith("ProfilerStep")]
    facts = Facts(recorded.read(tmp_path))
    assert facts[DependencyGraph].mean_error_frac == 0
    found = saving_without(facts, Edits())
    assert isinstance(found, Saving) and (found.value, found.method) == (0, Method.SIMULATED)
