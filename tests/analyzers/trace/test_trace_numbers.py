"""Numbers from text: exact to the nanosecond, against Python's own decimals."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tightship_analyzers.trace.numbers import INVALID, MAX_NS, MISSING, bandwidth, integers, nanoseconds

WHOLE = st.integers(-(10**15) * 9, 10**15 * 9)
AS_KINETO = st.tuples(WHOLE, st.integers(0, 999)).map(lambda parts: f"{parts[0]}.{parts[1]:03d}")
AS_PYTHON = st.floats(-1e15, 1e15).map(repr)
AS_ANYTHING = st.one_of(
    WHOLE.map(str),
    st.decimals(allow_nan=True, allow_infinity=True).map(str),
    st.sampled_from(["null", "[]", "{}", '"x"', '""', "1e400", "-1e400", "1e-400", "1E3", '"12.5"', "9" * 70]),
    st.text("0123456789", min_size=1, max_size=22),
)


def expected(token: str) -> int:
    try:
        value = Decimal(token.strip('"'))
    except ArithmeticError:
        return INVALID
    if not value.is_finite() or abs(value) > MAX_NS or len(token) > 60:
        return INVALID
    with_ns = (value * 1000).quantize(Decimal(1), ROUND_HALF_EVEN) if value.adjusted() > -40 else Decimal(0)
    return int(with_ns) if abs(with_ns) <= MAX_NS else INVALID


@given(st.lists(st.one_of(AS_KINETO, AS_PYTHON), max_size=20))
def test_times_as_profilers_write_them(tokens: list[str]) -> None:
    assert nanoseconds([msgspec.Raw(token.encode()) for token in tokens]).tolist() == list(map(expected, tokens))


@given(st.lists(st.one_of(AS_KINETO, AS_ANYTHING), max_size=6))
def test_times_as_anybody_might_write_them(tokens: list[str]) -> None:
    assert nanoseconds([msgspec.Raw(token.encode()) for token in tokens]).tolist() == list(map(expected, tokens))


@given(st.lists(WHOLE | st.integers(-(2**70), 2**70), min_size=1))
def test_integers_of_microseconds_are_read_as_their_text(times: list[int]) -> None:
    assert nanoseconds(times).tolist() == [expected(str(time)) for time in times]


def test_a_float_would_have_lost_the_nanoseconds() -> None:
    token = "1712195495519689.047"
    assert nanoseconds([msgspec.Raw(token.encode())]).tolist() == [1712195495519689047]
    assert round(float(token) * 1000) != 1712195495519689047


def test_ids() -> None:
    assert integers([1, "2", "007", "0x10", None, "x", 2**63, True]).tolist() == [1, 2, 7, 16, *[MISSING] * 4]
    assert integers(["2", "007"]).tolist() == [2, 7]
    assert integers([]).tolist() == []


def test_bandwidths_that_no_memory_has_count_as_none() -> None:
    tokens = ["1268.4387096774194", '"7.5"', "0", "-1", "1e400", "nan", "null", "true", "{}", "9" * 70, '"']
    read = [bandwidth(msgspec.Raw(token.encode())) for token in tokens]
    assert read == [1268.4387096774194, 7.5, *[0.0] * 9]
