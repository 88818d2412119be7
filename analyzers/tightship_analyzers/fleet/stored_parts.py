"""Parts of an analysis as the database keeps them until the ranks are joined."""

from __future__ import annotations

from dataclasses import dataclass

from tightship_analyzers.analysis.rank_part import RankPart
from tightship_analyzers.ranks.arrivals import ArrivalRows
from tightship_platform.results.analysis.finding import TraceFinding
from tightship_platform.results.analysis.rank import RankAnalysis
from tightship_platform.results.analysis.run import VERSION
from tightship_platform.results.not_applicable import NotApplicable
from tightship_platform.results.packed import pack, unpack

WHAT = "analysis of a rank"


@dataclass(frozen=True, kw_only=True)
class _Stored:
    analysis: RankAnalysis
    findings: list[TraceFinding]
    not_judged: dict[str, str]
    failed_rules: list[str]
    arrivals: ArrivalRows | None
    no_arrivals: str | None
    """Why there are none."""


def pack_part(part: RankPart) -> bytes:
    """The part as bytes."""
    missing = part.arrivals if isinstance(part.arrivals, NotApplicable) else None
    stored = _Stored(
        analysis=part.analysis,
        findings=list(part.findings),
        not_judged=part.not_judged,
        failed_rules=list(part.failed_rules),
        arrivals=None if isinstance(part.arrivals, NotApplicable) else ArrivalRows.of(part.arrivals),
        no_arrivals=missing.reason if missing else None,
    )
    return pack(stored, version=VERSION)


def unpack_part(body: bytes) -> RankPart:
    """The part again.

    :raises Unpackable: it is damaged, or of another release.
    """
    stored = unpack(_Stored, body, version=VERSION, what=WHAT)
    return RankPart(
        analysis=stored.analysis,
        findings=stored.findings,
        not_judged=stored.not_judged,
        failed_rules=stored.failed_rules,
        arrivals=NotApplicable(stored.no_arrivals or "") if stored.arrivals is None else stored.arrivals.arrivals(),
    )
