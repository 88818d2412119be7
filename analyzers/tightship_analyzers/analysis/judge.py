"""Let every rule on traces judge one trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tightship_analyzers.analysis.engine import NotJudged, apply_rules
from tightship_analyzers.analysis.summary import summarize, why_without_steps
from tightship_analyzers.facts.idle.step_split import StepSplit
from tightship_analyzers.facts.memo import Facts, NotApplicable
from tightship_analyzers.facts.program.recording_cost import RecordingCost
from tightship_analyzers.facts.program.seen_names import SeenNames
from tightship_analyzers.facts.window.recording import Recording
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.model import NOISE_FRAC, Failed, Finding, Judgement, TraceRule
from tightship_analyzers.findings.moved_work import limit_to_idle_cores
from tightship_analyzers.findings.profiling_overhead import correct_for_overhead
from tightship_analyzers.findings.savings import simulated, simulated_together
from tightship_analyzers.rules.catalogue import TRACE_RULES
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.analysis.rank import TraceSummary


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """All that the rules say about one trace."""

    findings: list[Finding]
    """The largest saving first."""
    not_judged: NotJudged
    summary: TraceSummary


def judge_trace(
    trace: Trace, *, untraced_step_ns: int | None = None, rules: Sequence[TraceRule] = TRACE_RULES
) -> Verdict:
    """Judge one rank's trace.

    :param untraced_step_ns: mean step by the step counter while nothing was recorded, where known.
    """
    return judge_facts(Facts(trace), untraced_step_ns=untraced_step_ns, rules=rules)


def judge_facts(
    facts: Facts,
    *,
    untraced_step_ns: int | None = None,
    idle_cores_frac: float | None = None,
    rules: Sequence[TraceRule] = TRACE_RULES,
) -> Verdict:
    """Judge a trace of which some facts are known, or are wanted afterwards.

    :param untraced_step_ns: mean step by the step counter while nothing was recorded, where known.
    :param idle_cores_frac: what may move to other cores at most, as a share of the step, where known.
    """
    findings, not_judged = apply_rules(rules, lambda rule: _judged(rule, facts), facts.trace.source)
    if findings:
        findings = _above_noise(facts, findings)
    steps = facts.find(Steps)
    findings.sort(key=lambda finding: -finding.saving.value)  # of those that name no saving, the order stays
    if steps is not None:
        is_longer = bool(findings) and untraced_step_ns is not None and untraced_step_ns < steps.mean_ns
        cost = facts.find(RecordingCost) if is_longer else None
        findings = [correct_for_overhead(finding, steps.mean_ns, untraced_step_ns, cost) for finding in findings]
        step_ns = min(steps.mean_ns, untraced_step_ns or steps.mean_ns)
        findings = [limit_to_idle_cores(finding, step_ns, idle_cores_frac) for finding in findings]
    findings.sort(key=lambda finding: -finding.saving.value)
    notes = [f"rule {name}: {why.reason}" for name, why in not_judged.items() if isinstance(why, Failed)]
    if facts[Recording].unfit is None and (reason := why_without_steps(facts)) and facts.find(StepSplit) is not None:
        notes.append(f"judged as a whole; figures per step {reason}")
    return Verdict(
        findings=findings, not_judged=not_judged, summary=summarize(facts, findings, notes, untraced_step_ns)
    )


def _judged(rule: TraceRule, facts: Facts) -> Judgement:
    unfit = facts[Recording].unfit
    if unfit is not None:
        return NotApplicable(f"needs another recording: {unfit}")
    if rule.signs is not None:
        seen = facts.find(SeenNames)
        if seen is not None and not seen.show(rule.signs, in_frames=rule.signs_in_frames):
            return []
    missing = facts.missing(rule.needs, asker=rule.id)
    if missing is not None:
        return missing
    outcome = rule.judge(facts)
    return outcome if isinstance(outcome, NotApplicable) else _priced(facts, outcome)


def _priced(facts: Facts, found: Judgement) -> Iterator[Finding]:
    assert not isinstance(found, NotApplicable)
    return (simulated(facts, finding) for finding in found)


def _above_noise(facts: Facts, findings: list[Finding]) -> list[Finding]:
    """Those that save something to speak of, alone or with the others that save too little alone."""
    small = [finding for finding in findings if finding.share_frac < NOISE_FRAC]
    joint = simulated_together(facts, small) if len(small) > 1 else None
    if joint is not None and joint.value >= NOISE_FRAC * facts[Window].mean_ns:
        # Such as two reads of a value of which the second inherits the wait where the first one goes.
        return findings
    return [finding for finding in findings if finding.share_frac >= NOISE_FRAC or finding.is_hidden]
