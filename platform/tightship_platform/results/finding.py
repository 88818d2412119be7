"""Findings of the rules, each with its saving and its evidence."""

from __future__ import annotations

from dataclasses import dataclass

from tightship_platform.results.evidence import Evidence


@dataclass(frozen=True, kw_only=True)
class FindingSaving:
    """What acting on a finding gives back."""

    value: int | None
    """The saving in nanoseconds; null: not known, as of a risk."""
    unit: str
    """What it is a saving of: `ns/step`, `ns/recording`, or `ns` (device time over the life of the run)."""
    low: int | None
    """Low end of the saving; null where the saving is not known."""
    high: int | None
    """High end of the saving; null where the saving is not known."""
    method: str | None
    """`measured`, `simulated` or `bound`; null where the saving is not known."""
    share_frac: float | None
    """The saving as a share of the step or recording, or of the run's device time; null: not known."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a rule says about a run, or about one trace of it."""

    finding: int
    """Its id; kept by a new analysis that finds the same rule at the same place."""
    rule: str
    """Id of the rule."""
    title: str
    """What is wrong, in one sentence."""
    run: str
    """Id of the run."""
    workflow: str
    """Workflow of the run."""
    trace: int | None
    """Id of the trace; null: it comes from the run's samples."""
    rank: int | None
    """Rank of the trace; null: it comes from the run's samples."""
    where: str
    """File and line, operator, or device; empty: unknown."""
    fix: str
    """What to change."""
    saving: FindingSaving
    """What the change gives back."""
    evidence: list[Evidence]
    """What it rests on."""
    created_ns: int
    """When it was found."""
    simulated: bool
    """The run was made up by a simulator."""
