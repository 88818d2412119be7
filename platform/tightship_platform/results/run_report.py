"""Everything about one run, as `tightship show` prints it."""

from __future__ import annotations

from dataclasses import dataclass

from tightship_platform.results.capture import Capture
from tightship_platform.results.finding import Finding
from tightship_platform.results.run import RunDetail


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """A run, what was found in it, and its captures."""

    run: RunDetail
    """The run."""
    page: str
    """Address of its page."""
    findings: list[Finding]
    """What the rules found, the largest share first."""
    captures: list[Capture]
    """Its captures, the newest first."""
