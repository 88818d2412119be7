"""Parts of an analysis for tests of how ranks are joined: a real one, with the findings that a test wants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from captured import RECORDED

from tightship_analyzers.analysis.analyze_rank import analyze_rank, public_finding, with_rank
from tightship_analyzers.analysis.rank_part import RankPart
from tightship_analyzers.analysis.wanted import Wanted
from tightship_analyzers.findings.model import Finding


def part_of(rank: int, findings: Sequence[Finding] | None = None) -> RankPart:
    """The part of a starved job as this rank; with these findings instead of its own, where given."""
    part = analyze_rank(str(RECORDED / "starved.json.gz"), Wanted(), label=f"r{rank}")
    part = with_rank(replace(part, analysis=replace(part.analysis, named=True)), rank)
    if findings is None:
        return part
    return replace(part, findings=[public_finding(finding, f"r{rank}", rank) for finding in findings])
