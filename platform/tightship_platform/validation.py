"""Checks of single values that come from outside, each with one clear line when it is refused.

A name keeps its markup (`<b>`): it is text, and whoever shows it escapes it. What no name may hold is what breaks a
line, a terminal or a log: control characters, line separators, surrogates and overrides of the writing direction.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime
from functools import lru_cache

from tightship_platform.errors import Invalid
from tightship_platform.redaction import hide_secrets
from tightship_platform.units import NS_PER_S

NAME_MAX = 200
"""Longest workflow, team, owner, host, label key or value."""
ERROR_MAX = 1000
"""Longest words of a job's error that are kept."""
EARLIEST_NS = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp()) * NS_PER_S
"""Times before this are those of a clock that was never set."""
FUTURE_NS = 86_400 * NS_PER_S
"""Times further ahead than this are those of a clock that is wrong."""
COUNT_MAX = 2**53
"""Largest figure that is taken: sums and means in floating point, and readers of JSON, keep it exactly."""
INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1
RANK_MAX = 10_000_000
RATIO_SLACK = 1.5
"""A ratio made of two counters read a moment apart may exceed 1 a little: up to this it counts as 1."""

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_REFUSED_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
_DIRECTION_OVERRIDES = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


@lru_cache(maxsize=4096)
def _is_refused(character: str) -> bool:
    return character in _DIRECTION_OVERRIDES or unicodedata.category(character) in _REFUSED_CATEGORIES


def name(what: str, value: object, *, empty: bool = False) -> str:
    """A name of at most NAME_MAX characters on one line.

    :raises Invalid: too long, blank (unless `empty`), or with characters that break a line.
    """
    sized = isinstance(value, str) and len(value) <= NAME_MAX and (empty or bool(value.strip()))
    if not isinstance(value, str) or not sized or any(_is_refused(character) for character in value):
        raise Invalid(what, value, f"1 to {NAME_MAX} characters without line breaks or control characters")
    return value


def optional_name(what: str, value: object) -> str | None:
    """As `name`, or None; an empty text counts as missing."""
    return None if value is None or value == "" else name(what, value)


def label(text: str, what: str = "label") -> tuple[str, str]:
    """A label as it is written on a command line or in a query, `key=value`; the value may be empty.

    :raises Invalid: no `=`, or a key or value that is no name.
    """
    label_name, found, value = text.partition("=")
    if not found:
        raise Invalid(what, text, "key=value")
    return name("Label", label_name), name(f"Label {label_name}", value, empty=True)


def key(what: str, value: object) -> str:
    """A public id, fit for a path and a URL: letters, digits, dot, dash and underscore, at most 40."""
    if not isinstance(value, str) or not _KEY.fullmatch(value):
        raise Invalid(what, value, "1 to 40 letters, digits, dots, dashes or underscores")
    return value


def line(value: object, most: int) -> str:
    """Descriptive text (a reason, a device's state) made fit for one line: nothing is refused, secrets are hidden, long
    text is cut."""
    text = "".join(" " if _is_refused(character) else character for character in str(value)[: 4 * most])
    text = hide_secrets(" ".join(text.split()))
    return text if len(text) <= most else text[: most - 1] + "…"


def argument(value: object, most: int) -> str:
    """One argument of a command: line breaks stay, what a database cannot hold becomes U+FFFD, long text is cut."""
    text = "".join("\ufffd" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in str(value)[:most])
    return text if len(str(value)) <= most else text[: most - 1] + "…"


def time_ns(what: str, value: object, now: int) -> int:
    """UTC nanoseconds between the year 2000 and a day ahead of now."""
    if type(value) is not int or not EARLIEST_NS <= value <= now + FUTURE_NS:
        raise Invalid(what, value, "UTC nanoseconds between the year 2000 and one day ahead")
    return value


def count(what: str, value: object, *, least: int = 0, most: int = COUNT_MAX) -> int:
    """A whole number within bounds."""
    if type(value) is not int or not least <= value <= most:
        raise Invalid(what, value, f"a whole number from {least} to {most}")
    return value


def sha256(value: object) -> str:
    """The digest of a file."""
    if type(value) is not str or not _SHA256.fullmatch(value):
        raise Invalid("x-sha256", value, "64 lower-case hexadecimal digits")
    return value


def number(what: str, value: object, *, least: float = 0.0) -> float:
    """A finite number of at most COUNT_MAX: a sum of larger ones could exceed what a column holds."""
    if type(value) not in (int, float) or not least <= value <= COUNT_MAX:  # type: ignore[operator]
        raise Invalid(what, value, f"a finite number from {least:g} to {COUNT_MAX:.3g}")
    return float(value)  # type: ignore[arg-type]


def ratio(what: str, value: object) -> float:
    """A ratio 0..1; see RATIO_SLACK."""
    if type(value) not in (int, float) or not 0 <= value <= RATIO_SLACK:  # type: ignore[operator]
        raise Invalid(what, value, "a ratio from 0 to 1")
    return min(float(value), 1.0)  # type: ignore[arg-type]
