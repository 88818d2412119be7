"""The interval algebra against sets of single nanoseconds, where every operation is Python's own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightship_analyzers.trace.intervals import Intervals, union_of

MOMENTS = st.integers(-30, 30)
PAIRS = st.lists(st.tuples(MOMENTS, MOMENTS), max_size=12)


def made(pairs: list[tuple[int, int]]) -> Intervals:
    return Intervals.of([start for start, _ in pairs], [end for _, end in pairs])


def points(pairs: list[tuple[int, int]]) -> set[int]:
    return {moment for start, end in pairs for moment in range(start, end)}


def shape_is_normal(intervals: Intervals) -> bool:
    flat = np.stack((intervals.start_ns, intervals.end_ns), axis=1).ravel()
    return bool((np.diff(flat) > 0).all())


@given(PAIRS)
def test_union_holds_every_moment_once(pairs: list[tuple[int, int]]) -> None:
    union = made(pairs)
    assert shape_is_normal(union)
    assert points(list(union)) == points(pairs)
    assert union.measure_ns == len(points(pairs))


@given(PAIRS, PAIRS)
def test_set_operations_agree_with_sets(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    a, b = made(left), made(right)
    for result, expected in (
        (a | b, points(left) | points(right)),
        (a & b, points(left) & points(right)),
        (a - b, points(left) - points(right)),
    ):
        assert shape_is_normal(result)
        assert points(list(result)) == expected


@given(PAIRS, MOMENTS, MOMENTS)
def test_clip_and_gaps_share_out_the_window(pairs: list[tuple[int, int]], start: int, end: int) -> None:
    window = set(range(start, end))
    inside, outside = made(pairs).clip(start, end), made(pairs).gaps(start, end)
    assert points(list(inside)) == points(pairs) & window
    assert points(list(outside)) == window - points(pairs)
    assert inside.measure_ns + outside.measure_ns == len(window)


@given(PAIRS, st.lists(MOMENTS, max_size=10))
def test_moments_are_found(pairs: list[tuple[int, int]], at: list[int]) -> None:
    moments = np.array(at, dtype=np.int64)
    inside = made(pairs)
    assert inside.contains(moments).tolist() == [moment in points(pairs) for moment in at]
    assert inside.covered_before(moments).tolist() == [len([p for p in points(pairs) if p < m]) for m in at]


@given(PAIRS, PAIRS)
def test_overlap_of_each_row(pairs: list[tuple[int, int]], rows: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in rows], dtype=np.int64)
    ends = np.array([end for _, end in rows], dtype=np.int64)
    expected = [len(points(pairs) & set(range(start, end))) for start, end in rows]
    assert made(pairs).overlap_ns(starts, ends).tolist() == expected
    assert made(pairs).meets(starts, ends).tolist() == [shared > 0 for shared in expected]


def test_nanoseconds_since_the_epoch_stay_exact() -> None:
    base = 1_790_857_026_000_000_000
    busy = Intervals.of([base, base + 3], [base + 1, base + 2**40 + 1])
    assert busy.measure_ns == 1 + 2**40 - 2
    assert list(busy.gaps(base, base + 5)) == [(base + 1, base + 3)]


def test_equality_is_by_content_and_a_set_of_time_is_no_key() -> None:
    assert Intervals.of([1, 2], [2, 3]) == Intervals.one(1, 3)
    assert Intervals.none() != Intervals.one(1, 3)
    with pytest.raises(TypeError):
        hash(Intervals.none())


@given(st.lists(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60))), max_size=5))
def test_the_union_of_many_is_that_of_one_after_another(many: list[list[tuple[int, int]]]) -> None:
    parts = [Intervals.of([start for start, _ in pairs], [end for _, end in pairs]) for pairs in many]
    one_by_one = Intervals.none()
    for part in parts:
        one_by_one = one_by_one | part
    assert union_of(parts) == one_by_one
