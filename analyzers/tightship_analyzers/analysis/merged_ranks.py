"""The ranks of a run execute the same code: the same rule at the same place is one finding, told for the worst rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from tightship_analyzers.analysis.judge import Verdict
from tightship_analyzers.findings.evidence import fact
from tightship_analyzers.findings.model import Finding

Source = TypeVar("Source")


@dataclass(frozen=True, kw_only=True)
class RankVerdict(Generic[Source]):
    """What was said about the trace of one rank."""

    rank: int
    source: Source
    """Whatever tells the caller which trace it was: a row id, a path."""
    verdict: Verdict


@dataclass(kw_only=True)
class _Shared(Generic[Source]):
    worst: Finding
    rank: RankVerdict[Source]
    seen: list[int] = field(default_factory=list)


def merge_ranks(judged: Sequence[RankVerdict[Source]]) -> list[tuple[Finding, RankVerdict[Source]]]:
    """Each finding once, with the rank that loses most by it, the largest middle of low and high first."""
    shared: dict[tuple[str, str], _Shared[Source]] = {}
    for one in judged:
        for finding in one.verdict.findings:
            key = (finding.rule, finding.place)
            known = shared.setdefault(key, _Shared(worst=finding, rank=one))
            known.seen.append(one.rank)
            if _loses(finding) > _loses(known.worst):
                known.worst, known.rank = finding, one
    merged = [(_told(known, len(judged)), known.rank) for known in shared.values()]
    return sorted(merged, key=lambda pair: -midpoint_frac(pair[0]))


def _loses(finding: Finding) -> tuple[float, int]:
    """By what ranks are compared; a share is comparable though one rank's trace holds steps and another's none."""
    return finding.share_frac, finding.saving.value


def midpoint_frac(finding: Finding) -> float:
    """The middle between low and high as a share of the step: what is only an upper end does not come first by it."""
    saving = finding.saving
    return finding.share_frac * (saving.low + saving.high) / (2 * saving.value) if saving.value else 0.0


def _told(known: _Shared[Source], ranks: int) -> Finding:
    if ranks == 1:
        return known.worst
    seen = sorted(set(known.seen))
    numbers = ", ".join(map(str, seen)) if len(seen) <= 16 else f"{seen[0]} … {seen[-1]}"
    where = f"shown is rank {known.rank.rank}, where the fix saves most"
    text = f"Seen on {len(known.seen)} of {ranks} ranks ({numbers}); {where}"
    return replace(known.worst, evidence=[*known.worst.evidence, fact(text, len(known.seen), "ranks")])
