"""What the traces of one run say together."""

from __future__ import annotations

from dataclasses import dataclass

from tightship_platform.results.analysis.finding import TraceFinding
from tightship_platform.results.analysis.rank import RankAnalysis
from tightship_platform.results.analysis.skew import RankComparison

VERSION = 2
"""Of the form in which analyses are stored; one of another version is refused until it is analyzed again."""


@dataclass(frozen=True, kw_only=True)
class RunAnalysis:
    """The traces of a run's ranks, judged one by one and together."""

    ranks: list[RankAnalysis]
    """By rank."""
    findings: list[TraceFinding]
    """Each once, with the rank that loses most by it; the one of which most is to be expected first."""
    across_ranks: RankComparison | None
    """The ranks compared; null for a single one, or where `not_compared` says why not."""
    not_compared: str | None
    """Why the ranks are not compared; null where they are."""
    not_judged: dict[str, str]
    """Rule → why it judged no rank's trace, or did not compare the ranks."""
    failed_rules: list[str]
    """Rules of these that broke on a trace: a defect of ours."""
    skipped: list[str]
    """Files of a folder that are no traces, one line each."""
    failed: list[str]
    """Traces that could not be read, one line each."""
    rules: int
    """How many rules were applied: to each trace, and to the ranks of several."""
