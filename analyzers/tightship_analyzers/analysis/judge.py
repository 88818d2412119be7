"""Lets every rule judge one trace. A rule gives findings, says "not applicable" with the reason, or fails alone."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from tightship_analyzers.analysis.summary import summarize, why_without_steps
from tightship_analyzers.facts.idle.step_split import StepSplit
from tightship_analyzers.facts.memo import Facts, NotApplicable
from tightship_analyzers.facts.program.seen_names import SeenNames
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.model import NOISE_FRAC, Failed, Finding, Rule
from tightship_analyzers.findings.profiling_overhead import correct_for_overhead
from tightship_analyzers.findings.savings import simulated, simulated_together
from tightship_analyzers.hardware import HardwareError
from tightship_analyzers.ranks.rank_comparison import RankComparison
from tightship_analyzers.rules.catalogue import RANK_RULES, TRACE_RULES
from tightship_analyzers.trace.model import Trace

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """All that is said about one trace."""

    findings: list[Finding]
    """The largest saving first."""
    not_judged: dict[str, NotApplicable | Failed]
    """Rule id → why it gave no judgement."""
    summary: dict[str, Any]
    """See summary.py."""


def judge_trace(trace: Trace, *, untraced_step_ns: int | None = None, rules: tuple[Rule, ...] = TRACE_RULES) -> Verdict:
    """Judge one rank's trace.

    :param untraced_step_ns: mean step by the step counter while nothing was recorded, where known.
    """
    return judge_facts(Facts(trace), untraced_step_ns=untraced_step_ns, rules=rules)


def judge_facts(facts: Facts, *, untraced_step_ns: int | None = None, rules: tuple[Rule, ...] = TRACE_RULES) -> Verdict:
    """The same for a trace of which some facts are known, or are wanted afterwards."""
    findings: list[Finding] = []
    not_judged: dict[str, NotApplicable | Failed] = {}
    for rule in rules:
        outcome = _apply(rule, facts)
        if isinstance(outcome, NotApplicable | Failed):
            not_judged[rule.id] = outcome
        else:
            findings.extend(outcome)
    if findings:
        findings = _above_noise(facts, findings)
    steps = facts.find(Steps)
    if steps is not None:
        findings = [correct_for_overhead(finding, steps.mean_ns, untraced_step_ns) for finding in findings]
    findings.sort(key=lambda finding: -finding.saving.value)
    notes = [f"rule {name}: {why.reason}" for name, why in not_judged.items() if isinstance(why, Failed)]
    if (reason := why_without_steps(facts)) and facts.find(StepSplit) is not None:
        notes.append(f"judged as a whole; what is told per step {reason}")
    return Verdict(
        findings=findings, not_judged=not_judged, summary=summarize(facts, findings, notes, untraced_step_ns)
    )


def judge_ranks(ranks: RankComparison, rules: tuple[Rule, ...] = RANK_RULES) -> list[Finding]:
    """Judge the ranks of one run side by side; a rule that does not apply says nothing."""
    findings: list[Finding] = []
    for rule in rules:
        outcome = rule.judge(ranks)
        findings.extend([] if isinstance(outcome, NotApplicable) else outcome)
    return findings


def _above_noise(facts: Facts, findings: list[Finding]) -> list[Finding]:
    """Those that save something to speak of, alone or with the others that save too little alone."""
    small = [finding for finding in findings if finding.share_frac < NOISE_FRAC]
    joint = simulated_together(facts, small) if len(small) > 1 else None
    if joint is not None and joint.value >= NOISE_FRAC * facts[Window].mean_ns:
        # Such as two reads of a value of which the second inherits the wait where the first one goes.
        return findings
    return [finding for finding in findings if finding.share_frac >= NOISE_FRAC]


def _apply(rule: Rule, facts: Facts) -> list[Finding] | NotApplicable | Failed:
    try:
        if rule.signs is not None:
            seen = facts.find(SeenNames)
            if seen is not None and not seen.show(rule.signs, in_frames=rule.signs_in_frames):
                return []
        for need in rule.needs:
            known = facts.get(need, asker=rule.id)
            if isinstance(known, NotApplicable):
                return known
        outcome = rule.judge(facts)
        return outcome if isinstance(outcome, NotApplicable) else [simulated(facts, finding) for finding in outcome]
    except HardwareError:
        raise  # a file of the user's, which no rule could read
    except Exception as error:  # one rule that breaks on a strange trace must not cost the others their findings
        log.exception("Rule %s failed on %s", rule.id, facts.trace.source)
        return Failed(f"failed with {type(error).__name__}; please report it with the trace")
