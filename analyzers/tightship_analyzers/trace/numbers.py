"""Numbers from JSON text to int64 columns, exactly.

Microseconds with three decimals since the epoch need 54 to 61 bits as nanoseconds: a float has lost the nanoseconds
before anybody can round it. So times are taken from the text itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Context, Decimal, InvalidOperation
from typing import cast

import msgspec
import numpy as np

from tightship_analyzers.trace.columns import Int64s

INVALID = np.iinfo(np.int64).min
"""Stands where a time is missing or is no number that fits."""
MISSING = -1
"""Stands where an id or a size is missing or is no integer that fits."""

MAX_NS = 9 * 10**18
"""Year 2255. Text beyond int64 is read as the largest int64, which is above this too."""
MAX_DIGITS = 18
NS_EXPONENT = 3
MAX_TOKEN = 60
LEAST_GBPS, MOST_GBPS = 1e-9, 1e9
EXACT = Context(prec=80)
NS_PER_US = 1000
SCALE = np.array([1000, 100, 10, 1], dtype=np.int64)


def nanoseconds(times: Sequence[msgspec.Raw] | Sequence[int]) -> Int64s:
    """Microseconds, all as JSON tokens or all as integers → int64 nanoseconds, ties to even.

    `INVALID` where one is no such number.
    """
    count = len(times)
    if not count:
        return np.empty(0, dtype=np.int64)
    if isinstance(times[0], int):
        return _from_integers(cast("Sequence[int]", times))
    tokens = cast("Sequence[msgspec.Raw]", times)
    text = b",".join(tokens)
    if text.translate(None, b"0123456789.,-"):
        return _one_by_one(tokens)
    if b"." not in text and b"-" not in text and not text.startswith(b",") and b",," not in text:
        whole: Int64s = np.fromstring(text.removesuffix(b","), dtype=np.int64, sep=",")
        if len(whole) == count and whole.max() <= MAX_NS // NS_PER_US:
            return whole * NS_PER_US
        return _one_by_one(tokens)
    codes = np.frombuffer(text, dtype=np.uint8)
    ends = np.append(np.flatnonzero(codes == ord(",")), len(codes))
    if len(ends) != count or np.diff(ends, prepend=-1).min() == 1:
        return _one_by_one(tokens)
    values = np.fromstring(text.replace(b".", b""), dtype=np.int64, sep=",")
    decimals = np.zeros(count, dtype=np.int64)
    dots = np.flatnonzero(codes == ord("."))
    if len(dots):
        owners = np.searchsorted(ends, dots)
        decimals[owners] = ends[owners] - dots - 1
    if len(values) != count or decimals.max() > NS_EXPONENT:
        return _one_by_one(tokens)
    scale = SCALE[decimals]
    if (np.abs(values) > MAX_NS // scale).any():
        return _one_by_one(tokens)
    return values * scale


def _from_integers(times: Sequence[int]) -> Int64s:
    most = MAX_NS // NS_PER_US
    values = integers(times, missing=INVALID)
    if values.min() >= -most and values.max() <= most:
        return values * NS_PER_US
    sound = (values >= -most) & (values <= most)
    return np.where(sound, np.where(sound, values, 0) * NS_PER_US, INVALID)


def _one_by_one(tokens: Iterable[msgspec.Raw]) -> Int64s:
    return np.array([nanosecond(bytes(token)) for token in tokens], dtype=np.int64)


def nanosecond(token: bytes) -> int:
    """One token of microseconds (a number, also with an exponent, or a string that holds one) → nanoseconds."""
    text = token.strip().strip(b'"')
    if not text or len(text) > MAX_TOKEN:
        return INVALID
    try:
        value = Decimal(text.decode("ascii"))
    except (InvalidOperation, UnicodeDecodeError):
        return INVALID
    # The exponent is looked at first: 1e400000000 is a short text and an endless integer.
    if not value.is_finite() or value.adjusted() > MAX_DIGITS:
        return INVALID
    if value.adjusted() < -MAX_TOKEN:
        return 0
    result = int(value.scaleb(NS_EXPONENT, EXACT).to_integral_value(context=EXACT))
    return result if abs(result) <= MAX_NS else INVALID


def integers(values: Sequence[int | str | None], missing: int = MISSING) -> Int64s:
    """Values as JSON gave them → int64; text such as "12" or "0x1f" counts, anything else is `missing`."""
    try:
        # It reads decimal text too.
        return np.fromiter(cast("Sequence[int]", values), dtype=np.int64, count=len(values))
    except (TypeError, ValueError, OverflowError):
        return np.array([integer(value, missing) for value in values], dtype=np.int64)


def integer(value: object, missing: int = MISSING) -> int:
    """One value → an integer that fits int64, else `missing`."""
    if isinstance(value, str) and len(value) <= MAX_TOKEN:
        value = _of_text(value, 10)
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) < value < 2**63:
        return int(value)
    return missing


def _of_text(text: str, base: int) -> int | None:
    try:
        return int(text, base)
    except ValueError:
        return _of_text(text, 0) if base else None


def bandwidth(token: msgspec.Raw) -> float:
    """One token of GB/s; 0 where it is no number, or one that no memory has."""
    try:
        value = float(bytes(token).strip(b'"')) if len(bytes(token)) <= MAX_TOKEN else 0.0
    except ValueError:
        return 0.0
    return value if LEAST_GBPS < value < MOST_GBPS else 0.0
