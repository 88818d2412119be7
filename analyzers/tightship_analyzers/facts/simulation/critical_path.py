"""What each step waited for, from its end back to its begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from tightship_analyzers.facts.memo import Facts, NotApplicable
from tightship_analyzers.facts.simulation.dependency_graph import DependencyGraph
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.graph.critical_path import CriticalPath, critical_paths


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPaths:
    """One path per step; see graph/critical_path.py."""

    paths: list[CriticalPath]

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Needs steps."""
        steps, known = facts.get(Steps), facts.get(DependencyGraph)
        if isinstance(steps, NotApplicable):
            return steps
        if isinstance(known, NotApplicable):
            return known
        return cls(critical_paths(facts.trace, known.graph))
