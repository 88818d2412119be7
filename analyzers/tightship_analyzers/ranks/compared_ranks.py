"""What rules on several ranks judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tightship_analyzers.ranks.skew import ArrivalSkew


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComparedRanks:
    """The ranks of one run over the same window."""

    skew: ArrivalSkew
    step_ns: Mapping[int, int]
    """Rank → its mean step; empty where no steps are marked."""
