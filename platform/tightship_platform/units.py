"""The only place where units change. Inside, time is integer UTC nanoseconds, sizes are bytes, ratios are 0..1."""

from __future__ import annotations

import re
import time

from tightship_platform.errors import Invalid

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ns|us|ms|s|m|h|d)?\s*", re.ASCII)
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


def format_ns(value: int | None) -> str:
    """A duration for people: three significant figures and a unit; '–' when missing."""
    if value is None:
        return "–"
    size = abs(value)
    for unit, width in (
        ("h", 3600 * NS_PER_S),
        ("min", 60 * NS_PER_S),
        ("s", NS_PER_S),
        ("ms", NS_PER_MS),
        ("µs", NS_PER_US),
    ):
        if size >= width:
            number = value / width
            digits = 0 if abs(number) >= 100 else 1 if abs(number) >= 10 else 2
            return f"{number:.{digits}f} {unit}"
    return f"{value} ns"


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
