"""The only place where units change. Inside, time is integer UTC nanoseconds, sizes are bytes, ratios are 0..1."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta, tzinfo

from tightship_platform.errors import Invalid

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

_DURATION = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*(ns|us|ms|s|m|h|d)?\s*", re.ASCII)
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_SHOWN_IN = (("h", 3600 * NS_PER_S), ("min", 60 * NS_PER_S), ("s", NS_PER_S), ("ms", NS_PER_MS), ("µs", NS_PER_US))
_LATEST_S = 9_223_372_035
"""The last second whose nanoseconds fit 64 bits, in the year 2262."""
_BEFORE_UNIT = re.compile(
    r"(?<=\d) (?=(?:%|ns|µs|ms|s|min|h|d|[KMGT]?i?B(?:/s)?|W|device-(?:seconds|minutes|hours))(?![\w/]))"
)
_UNIT_NS = {
    "ns": 1,
    "us": NS_PER_US,
    "ms": NS_PER_MS,
    "s": NS_PER_S,
    "m": 60 * NS_PER_S,
    "h": 3600 * NS_PER_S,
    "d": 86400 * NS_PER_S,
}


def now_ns() -> int:
    """UTC now in nanoseconds since the epoch."""
    return time.time_ns()


def parse_duration_ns(text: str) -> int:
    """'2s', '500ms', '1.5m', '3' (seconds) → nanoseconds.

    :raises Invalid: the text is not a duration.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise Invalid("Duration", text, "a number with a unit, such as 500ms, 2s, 5m or 1h")
    return round(float(match[1]) * _UNIT_NS[match[2] or "s"])


_DAYS_AGO = {"today": 0, "yesterday": 1}


def parse_time_ns(what: str, text: str, *, now: int, zone: tzinfo | None, ends_day: bool = False) -> int:
    """'2h' and '3d' (ago), 'yesterday', '2026-11-12', '2026-11-12 14:03', '2026-11-12T14:03:22+01:00' → UTC
    nanoseconds.

    :param zone: of a time that names none; None: this machine's.
    :param ends_day: a day without a time is its end, not its beginning.
    :raises Invalid: the text is no time.
    """
    ago = _DURATION.fullmatch(text)
    if ago is not None and ago[2] is not None:
        return max(0, now - parse_duration_ns(text))
    if text in _DAYS_AGO:
        text = f"{datetime.fromtimestamp(now // NS_PER_S, zone).date() - timedelta(days=_DAYS_AGO[text])}"
    try:
        at = datetime.fromisoformat(text.strip() if len(text) <= 40 else "")
        if ends_day and _DAY.fullmatch(text.strip()):
            at += timedelta(days=1)
        at = at if at.tzinfo is not None else at.astimezone() if zone is None else at.replace(tzinfo=zone)
        seconds = int(at.replace(microsecond=0).timestamp())
    except (ValueError, OverflowError, OSError) as error:
        expected = "a time such as 2h or 3d (ago), yesterday, 2026-11-12, or 2026-11-12T14:03+01:00"
        raise Invalid(what, text, expected) from error
    return min(max(0, seconds), _LATEST_S) * NS_PER_S + at.microsecond * NS_PER_US


_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*(?:([kmgt])(i?)b?|b)?\s*", re.ASCII | re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """'8GiB', '8G' (binary, too), '512 MiB', '1.5TB' (decimal), '4096' → bytes.

    :raises Invalid: the text is not a size.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise Invalid("Size", text, "a number with a unit, such as 512MiB, 8GiB or 80GB")
    if match[2] is None:
        return round(float(match[1]))
    decimal = not match[3] and text.strip()[-1] in "bB"
    factor: int = (1000 if decimal else 1024) ** (1 + "kmgt".index(match[2].lower()))
    return round(float(match[1]) * factor)


def three_figures(value: float) -> str:
    """'1.23', '12.3', '123', '2,492'; zero has no decimals."""
    size = abs(value)
    # The limits lie where rounding moves a number up: 99.96 is '100', not '100.0'.
    digits = 0 if size >= 99.95 or size == 0 else 1 if size >= 9.995 else 2
    return f"{value:,.{digits}f}"


def format_ns(value: float | None) -> str:
    """A duration for people, in lists and on pages: three significant figures and a unit; '–' when missing."""
    if value is None:
        return "–"
    if value == 0:
        return "0 s"
    unit, width = unit_of(value)
    return f"{value:.0f} ns" if width == 1 else f"{three_figures(value / width)} {unit}"


def unit_of(value_ns: float) -> tuple[str, int]:
    """The unit in which a duration is shown, and its nanoseconds."""
    return next(((unit, width) for unit, width in _SHOWN_IN if abs(value_ns) >= width), ("ns", 1))


def format_elapsed(value_ns: int | None) -> str:
    """How long something went on, as people say it: '2 h 14 min', '3 min 20 s', '12.4 s', '2 d 3 h'; '–': missing."""
    if value_ns is None or value_ns < 60 * NS_PER_S:
        return format_ns(value_ns)
    seconds = value_ns // NS_PER_S
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    if seconds < 48 * 3600:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min"
    return f"{seconds // 86400} d {seconds % 86400 // 3600} h"


def utc_offset(at: datetime) -> str:
    """By how much a local time is ahead of UTC, which every time shown to a person says: '+01:00'."""
    text = f"{at:%z}"
    return f"{text[:3]}:{text[3:5]}"


def format_bytes(value: int | None) -> str:
    """A size for people in binary units; '–' when missing."""
    if value is None:
        return "–"
    number = float(value)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(number) < 1024 or unit == "TiB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    raise AssertionError("unreachable")


def plural(number: int, one: str, many: str | None = None) -> str:
    """'1 run', '3 runs', '1,200 runs'."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def unbroken(text: str) -> str:
    """The text with no-break spaces between numbers and their units, for pages that break lines."""
    return _BEFORE_UNIT.sub("\u00a0", text)


def format_frac(value: float | None) -> str:
    """A 0..1 ratio as percent; '–' when missing."""
    return "–" if value is None else f"{100 * value:.1f} %"
