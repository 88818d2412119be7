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
    """One thing that was looked at."""

    check: str
    """What was looked at."""
    state: str
    """`ok`, `note` or `wrong`."""
    detail: str
    """What was seen."""
    advice: str = ""
    """What to do about it; empty: nothing."""
