"""What one rank's trace adds to the analysis of its run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tightship_analyzers.ranks.arrivals import CollectiveArrivals
from tightship_platform.results.analysis.finding import TraceFinding
from tightship_platform.results.analysis.rank import RankAnalysis
from tightship_platform.results.not_applicable import NotApplicable


@dataclass(frozen=True, kw_only=True)
class RankPart:
    """One file read and judged, small enough to pass from process to process."""

    analysis: RankAnalysis
    findings: Sequence[TraceFinding]
    not_judged: dict[str, str]
    """Rule → why it did not apply."""
    failed_rules: Sequence[str]
    """Rules of these that broke."""
    arrivals: CollectiveArrivals | NotApplicable
    """The rank's collectives, to be compared with those of the others."""
