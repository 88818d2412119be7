"""One line of the doctor's table."""

from __future__ import annotations

from dataclasses import dataclass

OK = "ok"
NOTE = "note"
"""Nothing is broken, but it is worth knowing."""
WRONG = "wrong"
"""Something does not work; the advice says what to do."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """What was looked at, how it stands, what was seen, and what to do about it."""

    check: str
    state: str
    detail: str
    advice: str = ""
