"""Analysis of trace files by path: no server, no database, nothing written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tightship_analyzers.analysis.judge import judge_ranks
from tightship_analyzers.analysis.merged_ranks import RankVerdict, merge_ranks, midpoint_frac
from tightship_analyzers.analysis.named_traces import ReadingBars, named_traces
from tightship_analyzers.analysis.rank_analysis import FactCost, RankAnalysis, Wanted
from tightship_analyzers.analysis.rank_figures import Figures
from tightship_analyzers.analysis.rank_processes import analyze_files
from tightship_analyzers.findings.model import Evidence, Finding
from tightship_analyzers.findings.profiling_overhead import correct_for_overhead
from tightship_analyzers.ranks.rank_comparison import RankComparison
from tightship_analyzers.ranks.skew import ArrivalSkew, arrival_skew
from tightship_analyzers.rules.catalogue import RANK_RULES
from tightship_platform.errors import Invalid, TightshipError
from tightship_platform.results.not_applicable import NotApplicable
from tightship_platform.text import shown
from tightship_platform.units import format_ns, plural


@dataclass(frozen=True, kw_only=True)
class OfflineRank(RankVerdict[str]):
    """One rank's verdict with its figures."""

    figures: Figures
    """See rank_figures.py."""
    costs: Sequence[FactCost]
    named: bool
    """The file itself says which rank it is."""
    gaps: Sequence[Evidence]
    """The longest waits, as many as were wanted."""


@dataclass(frozen=True, kw_only=True)
class OfflineResult:
    """Verdicts on some trace files, taken for the ranks of one run."""

    ranks: Sequence[OfflineRank]
    findings: Sequence[tuple[Finding, RankVerdict[str]]]
    """Each once, with the rank that loses most by it."""
    across: ArrivalSkew | NotApplicable
    """The ranks side by side."""
    skipped: Sequence[str]
    """Files of a folder that are no traces, one line each."""
    failed: Sequence[str]
    """Files that were named and could not be read, one line each."""
    rules: int
    """How many rules were to judge each of the traces."""

    def as_dict(self, *, explain: bool = False) -> dict[str, Any]:
        """What `tightship analyze --json` prints. Missing values are null."""
        across = self.across
        return {
            "ranks": [_rank(one, explain=explain) for one in self.ranks],
            "across_ranks": None if isinstance(across, NotApplicable) else across.as_dict(),
            "findings": [finding_dict(finding, worst) for finding, worst in self.findings],
            "not_judged": not_judged(self.ranks),
            "skipped": list(self.skipped),
            "failed": list(self.failed),
        }


def _rank(one: OfflineRank, *, explain: bool) -> dict[str, Any]:
    figures = {"rank": one.rank, "source": one.source, **one.verdict.summary, **one.figures}
    return figures | {"facts": [cost.as_dict() for cost in one.costs]} if explain else figures


def finding_dict(finding: Finding, worst: RankVerdict[str]) -> dict[str, Any]:
    """The public form of a finding, as `tightship findings --json` has it; no run, no id, the trace is its path."""
    return {
        "rule": finding.rule,
        "title": finding.title,
        "run": None,
        "workflow": None,
        "trace": worst.source,
        "rank": worst.rank,
        "where": finding.place,
        "fix": finding.fix,
        "saving": {
            "value": finding.saving.value,
            "unit": finding.unit.value,
            "low": finding.saving.low,
            "high": finding.saving.high,
            "method": finding.saving.method.value,
            "share_frac": finding.share_frac,
        },
        "evidence": finding.evidence,
    }


def analyze_paths(
    paths: Sequence[str], *, wanted: Wanted | None = None, jobs: int = 1, progress: bool = False
) -> OfflineResult:
    """Judge every trace that the paths name, `jobs` files at once.

    A file that cannot be read does not cost the others theirs: it is in `failed` where it was named itself, and in
    `skipped` where it only lay in a folder.

    :raises TightshipError: no file can be read, none has the rank that is wanted, or two files are of the same rank.
    """
    wanted = wanted or Wanted()
    named = dict(named_traces(paths))
    analyses: list[RankAnalysis] = []
    failed: list[str] = []
    skipped: list[str] = []
    others: set[int | None] = set()
    with ReadingBars(wanted=progress, files=len(named)) as bars:
        for source, outcome in analyze_files(list(named), wanted, jobs=jobs, told=bars.tell):
            bars.done(source)
            if isinstance(outcome, TightshipError):
                (failed if named[source] else skipped).append(shown(str(outcome), 300))
            elif isinstance(outcome, RankAnalysis):
                _refuse_twins(outcome, analyses)
                analyses.append(outcome)
            else:
                others.add(outcome)
    if not analyses:
        raise TightshipError(_nothing(wanted, others, [*failed, *skipped]))
    ranks = _numbered(analyses)
    _check_untraced(wanted, ranks)
    by_source = {one.source: one.arrivals for one in analyses}
    across = arrival_skew({one.rank: by_source[one.source] for one in ranks})
    findings = [*merge_ranks(ranks), *_of_ranks(ranks, across, wanted)]
    findings.sort(key=lambda pair: -midpoint_frac(pair[0]))
    return OfflineResult(
        ranks=ranks, findings=findings, across=across, skipped=skipped, failed=failed, rules=len(wanted.chosen_rules())
    )


def _of_ranks(
    ranks: Sequence[OfflineRank], across: ArrivalSkew | NotApplicable, wanted: Wanted
) -> list[tuple[Finding, RankVerdict[str]]]:
    """Findings on the ranks side by side, each with the rank that it is about."""
    if isinstance(across, NotApplicable):
        return []
    by_rank = {one.rank: one for one in ranks}
    steps = {rank: one.verdict.summary["step_ns"] for rank, one in by_rank.items()}
    comparison = RankComparison(skew=across, step_ns={rank: step["mean"] for rank, step in steps.items() if step})
    rules = tuple(rule for rule in RANK_RULES if not wanted.rules or rule.id in wanted.rules)
    found = judge_ranks(comparison, rules)
    return [
        (
            correct_for_overhead(finding, comparison.step_ns[finding.rank], wanted.untraced_step_ns),
            by_rank[finding.rank],
        )
        for finding in found
        if finding.rank is not None
    ]


def _check_untraced(wanted: Wanted, ranks: Sequence[OfflineRank]) -> None:
    given = wanted.untraced_step_ns
    if given is None:
        return
    recorded = [step["mean"] for one in ranks if (step := one.verdict.summary["step_ns"])]
    if not recorded:
        raise TightshipError("--untraced-step says nothing here: no trace holds a whole step; leave it out")
    if given > max(recorded):
        raise Invalid(
            "Untraced step",
            format_ns(given),
            f"at most the {format_ns(max(recorded))} of a recorded step, which recording can only make longer",
        )


def _refuse_twins(new: RankAnalysis, analyses: Sequence[RankAnalysis]) -> None:
    for known in analyses:
        if new.rank is not None and new.rank == known.rank:
            first, second = sorted((known.source, new.source))
            raise TightshipError(
                f"{shown(first)} and {shown(second)} are both of rank {new.rank}; give the files of one capture "
                "(one file a rank), or compare two with `tightship diff`"
            )


def _nothing(wanted: Wanted, others: set[int | None], unread: Sequence[str]) -> str:
    if others:
        ranks = ", ".join(map(str, sorted(rank for rank in others if rank is not None)))
        said = f"the others are of ranks {ranks}" if ranks else "the files do not say which rank they are: leave it out"
        why = f" ({unread[0]})" if unread else ""
        return f"No trace of rank {wanted.rank} could be judged{why}; {said}"
    return unread[0] if len(unread) == 1 else f"None of {plural(len(unread), 'file')} could be judged: {unread[0]}"


def _numbered(analyses: Sequence[RankAnalysis]) -> list[OfflineRank]:
    """By rank; files that do not name theirs get the free numbers in the order of their names."""
    taken = {one.rank for one in analyses}
    free = (number for number in range(len(taken) + len(analyses)) if number not in taken)
    ranks = [
        OfflineRank(
            rank=one.rank if one.rank is not None else next(free),
            source=one.source,
            verdict=one.verdict,
            figures=one.figures,
            costs=one.costs,
            named=one.rank is not None,
            gaps=one.gaps,
        )
        for one in sorted(analyses, key=lambda one: one.source)
    ]
    return sorted(ranks, key=lambda one: one.rank)


def not_judged(ranks: Sequence[RankVerdict[str]]) -> dict[str, str]:
    """Rule → why no rank's trace could be judged by it; rules that judged any rank are left out."""
    reasons: dict[str, str] = {}
    for one in ranks:
        for rule, why in one.verdict.not_judged.items():
            reasons.setdefault(rule, why.reason)
    judged = {rule for rule in reasons for one in ranks if rule not in one.verdict.not_judged}
    return {rule: reason for rule, reason in reasons.items() if rule not in judged}
