"""What each step waited for, from its end back to its begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.simulation.dependency_graph import DependencyGraph
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.graph.critical_path import CriticalPath, critical_paths


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPaths:
    """One path per step; see graph/critical_path.py."""

    needs: ClassVar[Needs] = (Steps, DependencyGraph)

    paths: list[CriticalPath]

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """Needs steps."""
        return cls(critical_paths(facts.trace, facts[DependencyGraph].graph))
