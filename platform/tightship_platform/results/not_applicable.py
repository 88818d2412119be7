"""The result of an analysis whose input a trace does not hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """Nothing can be said, and why: the input that is missing, in words that follow "not applicable: "."""

    reason: str
