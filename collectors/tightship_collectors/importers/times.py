"""Times and numbers as tables write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal, InvalidOperation

from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.validation import EARLIEST_NS, FUTURE_NS

NO_TIME = "not a time"
OUTSIDE = "a time before the year 2000, or more than a day ahead"
TWICE = "a time that the zone has twice or not at all; write seconds since 1970 (sacct: SLURM_TIME_FORMAT=%s)"
_MOST_S = Decimal(10) ** 12
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def decimal_of(text: str) -> Decimal | None:
    """A finite number; None: it is none."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def seconds_ns(text: str) -> int | None:
    """A time in seconds since 1970, with any decimals, as nanoseconds; None: it is none."""
    number = decimal_of(text)
    return None if number is None or not 0 < number < _MOST_S else int(number * NS_PER_S)


def can_be(time_ns: int) -> bool:
    """Whether the server takes such a time."""
    return EARLIEST_NS <= time_ns <= now_ns() + FUTURE_NS


def time_ns(text: str, zone: tzinfo | None) -> int | str:
    """Seconds since 1970, or ISO 8601, as nanoseconds; text: what is wrong with it.

    :param zone: of a time that names none; None: UTC.
    """
    seconds = seconds_ns(text)
    found = _iso_ns(text, zone) if seconds is None else seconds
    return found if isinstance(found, str) or can_be(found) else OUTSIDE


def _iso_ns(text: str, zone: tzinfo | None) -> int | str:
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is None:
            both = [at.replace(tzinfo=zone or UTC, fold=fold).astimezone(UTC) for fold in (0, 1)]
            if both[0] != both[1]:
                return TWICE
            at = both[0]
    except (ValueError, OverflowError):
        return NO_TIME
    return (at - _EPOCH) // timedelta(microseconds=1) * 1000
