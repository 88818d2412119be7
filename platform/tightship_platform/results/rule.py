"""A rule of the catalogue, as `tightship rules --json` prints it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RulePage:
    """What a rule looks for, and its page."""

    rule: str
    """Its id."""
    title: str
    """The bad pattern."""
    scope: str
    """`trace`, `ranks` or `samples`."""
    needs: list[str]
    """What it judges, without which it says "not applicable"."""
    unit: str
    """Of its savings."""
    fix: str
    """What to do, in general."""
    page: str
    """Markdown."""
