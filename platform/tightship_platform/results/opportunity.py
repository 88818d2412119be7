"""Opportunities: what to do in a workflow, and how much device time that gives back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Opportunity:
    """What to do in one workflow."""

    opportunity: int
    """Its id."""
    position: int
    """Its place in the ranking, from 1."""
    workflow: str
    """The workflow to change."""
    team: str | None
    """Team of the workflow; null: none was given."""
    owner: str | None
    """Owner of the workflow; null: none was given."""
    rules: list[str]
    """Rules behind it; several where their findings claim the same time."""
    title: str
    """What is wrong, in one sentence."""
    recoverable_device_ns: int | None
    """Device time of the recent runs that the change would give back; null: not known."""
    low_ns: int | None
    """Low end of it; null where it is not known."""
    high_ns: int | None
    """High end of it; null where it is not known."""
    method: str | None
    """`measured`, `simulated` or `bound`; null where it is not known."""
    device_ns: int
    """Device time that the recent runs held."""
    fix: str
    """What to change."""
    state: str
    """`open`, `applied`, `verified`, `refuted` or `dismissed`."""
    findings: list[int]
    """Ids of the findings behind it."""
    updated_ns: int
    """When it was last ranked, or its state changed."""
