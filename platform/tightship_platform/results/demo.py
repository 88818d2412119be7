"""The result of the demo."""

from __future__ import annotations

from dataclasses import dataclass, field

from tightship_platform.results.action import Action
from tightship_platform.results.finding import Finding
from tightship_platform.results.opportunity import Opportunity
from tightship_platform.results.run import Run


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What the demo's jobs show."""

    runs: list[Run]
    """Its runs, as `tightship runs --json` has them."""
    findings: list[Finding]
    """Their findings, as `tightship findings --json` has them."""
    opportunities: list[Opportunity]
    """What to do first, as `tightship opportunities --json` has it."""
    actions: list[Action] = field(default_factory=list)
    """What `--verify` applied and measured, as `tightship actions --json` has it; empty without it."""
