"""A finding of an analysis of traces."""

from __future__ import annotations

from dataclasses import dataclass

from tightship_platform.results.evidence import Evidence
from tightship_platform.results.finding import FindingSaving


@dataclass(frozen=True, kw_only=True)
class TraceFinding:
    """What a rule says about the traces of a run; the keys of `tightship findings --json` that need no database."""

    rule: str
    """Id of the rule."""
    title: str
    """What is wrong, in one sentence."""
    run: str | None = None
    """Id of the run; null: the files are of no known run."""
    workflow: str | None = None
    """Workflow of the run; null: not known."""
    trace: str
    """Path or address of the trace; of several the one where it costs most."""
    rank: int
    """The rank that it is about, or where it costs most."""
    of_ranks: bool = False
    """Judged by comparing the ranks, not from one trace."""
    where: str
    """File and line, operator, or device; empty: unknown."""
    fix: str
    """What to change."""
    saving: FindingSaving
    """What the change gives back."""
    standing: str
    """What is known of the rule's advice: `proven`, `unproven` (few real cases) or `experimental` (often wrong)."""
    evidence: list[Evidence]
    """What it rests on."""
