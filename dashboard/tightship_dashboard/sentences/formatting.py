"""Numbers, times and names as text. A unit on every number; missing is '–', never 0."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from tightship_platform.results.host import Device, count_devices
from tightship_platform.units import (
    NS_PER_S,
    format_elapsed,
    format_ns,
    three_figures,
    unbroken,
    unit_of,
    utc_offset,
)

MISSING = "–"
NBSP = "\u00a0"
"""Between a number and its unit, which belong on one line."""
HOUR = 3600 * NS_PER_S
MINUTE = 60 * NS_PER_S
NAME_SHOWN = 120
"""Longest name from outside that is shown whole."""


def name(value: object, *, limit: int = NAME_SHOWN) -> str:
    """A name from outside on one line: control and direction characters become visible, long ones are cut."""
    text = MISSING if value is None or value == "" else str(value)
    shown = "".join("␤" if c in "\r\n" else "�" if unicodedata.category(c)[0] == "C" else c for c in text)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def cell(value: object, *, limit: int = NAME_SHOWN) -> str:
    """A text for a table's cell, where backticks cannot become code."""
    return unbroken(name(value, limit=limit).replace("`", ""))


def code(value: object) -> str:
    """Text of several lines from outside; line feeds and tabs stay, other control characters become visible."""
    return "".join(c if c in "\n\t" or unicodedata.category(c)[0] != "C" else "�" for c in str(value))


def duration(value_ns: float | None) -> str:
    """A length of time as everywhere: '310 h', '61.4 h', '41.2 ms'."""
    return unbroken(format_ns(value_ns))


def clock(value_ns: int | None) -> str:
    """How long something went on, as people say it: '2 h 14 min', '3 min 20 s', '12.4 s', '2 d 3 h'."""
    return unbroken(format_elapsed(value_ns))


def device_time(value_ns: int) -> str:
    """Device time in a sentence: '2,492 device-hours', '41.5 device-seconds'."""
    unit, width = unit_of(value_ns)
    word = {"h": "device-hours", "min": "device-minutes", "s": "device-seconds"}.get(unit)
    return f"{three_figures(value_ns / (width if word else NS_PER_S))} {word or 'device-seconds'}"


def span(value_ns: int | None, low_ns: int | None, high_ns: int | None) -> str:
    """'310 h (280–330)': an estimate with its bounds in the same unit."""
    if value_ns is None:
        return MISSING
    text = duration(value_ns)
    if low_ns is None or high_ns is None or value_ns == 0:
        return text
    _, width = unit_of(value_ns)
    return f"{text} ({three_figures(low_ns / width)}–{three_figures(high_ns / width)})"


def percent(frac: float | None) -> str:
    """A 0..1 ratio: '41 %', '3.2 %', '<0.1 %'."""
    if frac is None:
        return MISSING
    value = 100 * frac
    if value == 0:
        return f"0{NBSP}%"
    if abs(value) < 0.1:
        return f"<0.1{NBSP}%"
    return f"{value:.0f}{NBSP}%" if abs(value) >= 9.95 else f"{value:.1f}{NBSP}%"


def share_span(frac: float, low: float, high: float) -> str:
    """'91 % (73–100)': an estimated 0..1 ratio with its bounds."""
    return f"{percent(frac)} ({_of_hundred(low)}–{_of_hundred(high)})"


def _of_hundred(frac: float) -> str:
    value = 100 * frac
    if value == 0:
        return "0"
    return f"{value:.{0 if abs(value) >= 9.95 else 1 if abs(value) >= 1 else 2}f}"


def share(part: int | None, whole: int | None) -> str:
    """`part` of `whole` as percent; missing when there is nothing to take a share of."""
    return percent(part / whole) if part is not None and whole else MISSING


def count(value: int | None) -> str:
    """A whole number with thousands separated."""
    return MISSING if value is None else f"{value:,}"


def zone_of(zone_name: str | None) -> ZoneInfo:
    """The viewer's zone; UTC when the browser named none that this system knows."""
    try:
        return ZoneInfo(zone_name) if zone_name and len(zone_name) <= 60 else ZoneInfo("UTC")
    except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError; a path-like name raises the others
        return ZoneInfo("UTC")


def moment(time_ns: int | None, zone: ZoneInfo, *, date: bool = True) -> str:
    """'12 Nov, 14:03:22 +01:00', in the viewer's zone, with its offset from UTC at that moment."""
    if time_ns is None:
        return MISSING
    at = local(time_ns, zone)
    return f"{_day(at, zone)}, {at:%H:%M:%S} {utc_offset(at)}" if date else f"{at:%H:%M:%S}"


def minute(time_ns: int | None, zone: ZoneInfo) -> str:
    """'12 Nov, 14:03', for tables whose head has the offset of now; a time with another one says so."""
    if time_ns is None:
        return MISSING
    at = local(time_ns, zone)
    offset = utc_offset(at)
    return f"{_day(at, zone)}, {at:%H:%M}" + ("" if offset == offset_now(zone) else f" {offset}")


def offset_at(time_ns: int, zone: ZoneInfo) -> str:
    """By how much the zone is ahead of UTC at that moment, such as +01:00."""
    return utc_offset(local(time_ns, zone))


def offset_now(zone: ZoneInfo) -> str:
    """By how much the zone is ahead of UTC now, such as +01:00."""
    return utc_offset(datetime.now(zone))


def _day(at: datetime, zone: ZoneInfo) -> str:
    return f"{at.day} {at:%b}" + (f" {at.year}" if at.year != datetime.now(zone).year else "")


def local(time_ns: int, zone: ZoneInfo) -> datetime:
    """The viewer's wall clock at that moment; what lies outside the calendar is put at its end."""
    seconds, rest = divmod(time_ns, NS_PER_S)
    bounded = min(max(seconds, 0), 253_402_000_000)
    return datetime.fromtimestamp(bounded, tz=UTC).astimezone(zone).replace(microsecond=rest // 1000)


def wall_clock(time_ns: int, zone: ZoneInfo) -> str:
    """The viewer's wall clock without a zone, to the millisecond, as charts take it."""
    at = local(time_ns, zone).replace(tzinfo=None)
    return at.isoformat(timespec="milliseconds" if at.microsecond >= 1000 else "seconds")


def iso(time_ns: int | None) -> str:
    """ISO 8601 in UTC with milliseconds; for hover and for machines."""
    if time_ns is None:
        return ""
    return local(time_ns, ZoneInfo("UTC")).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def devices(held: Sequence[Device]) -> str:
    """'8 × NVIDIA H100 80GB HBM3', or the kinds counted when they differ."""
    return name(count_devices(held), limit=2 * NAME_SHOWN)
