"""Join what the traces of a run's ranks say: findings once each, and the ranks compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tightship_analyzers.analysis.analyze_rank import public_finding, with_rank
from tightship_analyzers.analysis.engine import NotJudged, apply_rules, failures
from tightship_analyzers.analysis.rank_part import RankPart
from tightship_analyzers.analysis.wanted import Wanted
from tightship_analyzers.findings.evidence import fact
from tightship_analyzers.findings.model import RankRule
from tightship_analyzers.findings.profiling_overhead import correct_for_overhead
from tightship_analyzers.findings.track_record import expected, led_by_proven
from tightship_analyzers.ranks.compared_ranks import ComparedRanks
from tightship_analyzers.ranks.skew import ArrivalSkew, arrival_skew
from tightship_platform.results.analysis.finding import TraceFinding
from tightship_platform.results.analysis.rank import RankAnalysis
from tightship_platform.results.analysis.run import RunAnalysis
from tightship_platform.results.not_applicable import NotApplicable
from tightship_platform.vocabulary import Standing


def join_ranks(
    parts: Sequence[RankPart],
    wanted: Wanted | None = None,
    *,
    skipped: Sequence[str] = (),
    failed: Sequence[str] = (),
) -> RunAnalysis:
    """Join the parts of a run.

    Files that do not name their rank get the free numbers in the order of their names.

    :param parts: one a rank.
    :param skipped: files of a folder that are no traces, one line each.
    :param failed: traces that could not be read, one line each.
    """
    wanted = wanted or Wanted()
    parts = _numbered(parts)
    skew = arrival_skew({one.analysis.rank: one.arrivals for one in parts})
    rank_rules = wanted.rank_rules() if len(parts) > 1 else ()
    of_ranks: list[TraceFinding] = []
    if isinstance(skew, ArrivalSkew):
        of_ranks, unfit = _compared(parts, skew, rank_rules, wanted)
    else:
        unfit = dict.fromkeys((rule.id for rule in rank_rules), skew)
    findings = sorted([*merge_findings(parts), *of_ranks], key=lambda finding: -expected_frac(finding))
    findings = led_by_proven(findings, lambda finding: Standing(finding.standing))
    return RunAnalysis(
        ranks=[one.analysis for one in parts],
        findings=findings,
        across_ranks=skew.as_record() if isinstance(skew, ArrivalSkew) else None,
        not_compared=skew.reason if isinstance(skew, NotApplicable) else None,
        not_judged=_not_judged(parts) | {rule: why.reason for rule, why in unfit.items()},
        failed_rules=sorted({*failures(unfit), *(rule for one in parts for rule in one.failed_rules)}),
        skipped=list(skipped),
        failed=list(failed),
        rules=len(wanted.trace_rules()) + len(rank_rules),
    )


def _numbered(parts: Sequence[RankPart]) -> list[RankPart]:
    taken = {one.analysis.rank for one in parts if one.analysis.named}
    free = (number for number in range(len(taken) + len(parts)) if number not in taken)
    numbered = [
        one if one.analysis.named else with_rank(one, next(free))
        for one in sorted(parts, key=lambda one: one.analysis.source)
    ]
    return sorted(numbered, key=lambda one: one.analysis.rank)


def _compared(
    parts: Sequence[RankPart], skew: ArrivalSkew, rules: Sequence[RankRule], wanted: Wanted
) -> tuple[list[TraceFinding], NotJudged]:
    """Findings of the rules that compare ranks, each with the rank that it is about; and why the others gave none."""
    by_rank = {one.analysis.rank: one.analysis for one in parts}
    step_ns = {rank: step.mean for rank, one in by_rank.items() if (step := one.summary.step_ns)}
    comparison = ComparedRanks(skew=skew, step_ns=step_ns)

    found, not_judged = apply_rules(rules, lambda rule: rule.judge(comparison), f"{len(parts)} ranks")
    findings = []
    for finding in found:
        if finding.rank is not None:
            about = by_rank[finding.rank]
            corrected = correct_for_overhead(finding, step_ns[finding.rank], about.summary.untraced_step_ns)
            findings.append(public_finding(corrected, about.source, about.rank, assume_proven=wanted.assume_proven))
    return findings, not_judged


@dataclass(kw_only=True)
class _Shared:
    worst: TraceFinding
    ranks: list[int] = field(default_factory=list)


def merge_findings(parts: Sequence[RankPart]) -> list[TraceFinding]:
    """Each finding once, from the rank that loses most by it: the ranks of a run execute the same code, so the same
    rule at the same place is one finding."""
    shared: dict[tuple[str, str], _Shared] = {}
    for one in parts:
        for finding in one.findings:
            known = shared.setdefault((finding.rule, finding.where), _Shared(worst=finding))
            known.ranks.append(one.analysis.rank)
            if _loses(finding) > _loses(known.worst):
                known.worst = finding
    merged = [_with_ranks(known, len(parts)) for known in shared.values()]
    return sorted(merged, key=lambda finding: -expected_frac(finding))


def _loses(finding: TraceFinding) -> tuple[float, int]:
    """By what ranks are compared; a share is comparable though one rank's trace holds steps and another's none."""
    return finding.saving.share_frac or 0.0, finding.saving.value or 0


def expected_frac(finding: TraceFinding) -> float:
    """What to expect of it as a share of the step: what is only an upper end does not come first by it."""
    saving = finding.saving
    if not saving.value or saving.low is None or saving.high is None or saving.share_frac is None:
        return 0.0
    return saving.share_frac * expected([finding.rule], saving.low, saving.high) / saving.value


def _with_ranks(known: _Shared, ranks: int) -> TraceFinding:
    if ranks == 1:
        return known.worst
    seen = sorted(set(known.ranks))
    numbers = ", ".join(map(str, seen)) if len(seen) <= 16 else f"{seen[0]} … {seen[-1]}"
    where = f"shown is rank {known.worst.rank}, where the fix saves most"
    text = f"Seen on {len(known.ranks)} of {ranks} ranks ({numbers}); {where}"
    return replace(known.worst, evidence=[*known.worst.evidence, fact(text, len(known.ranks), "ranks")])


def _not_judged(parts: Sequence[RankPart]) -> dict[str, str]:
    """Rule → why no rank's trace could be judged by it; rules that judged any rank are left out."""
    reasons: dict[str, str] = {}
    for one in parts:
        for rule, reason in one.not_judged.items():
            reasons.setdefault(rule, reason)
    judged = {rule for rule in reasons for one in parts if rule not in one.not_judged}
    return {rule: reason for rule, reason in reasons.items() if rule not in judged}


def by_rank(analysis: RunAnalysis) -> Mapping[int, RankAnalysis]:
    """Rank → its analysis."""
    return {one.rank: one for one in analysis.ranks}
