"""Choosing rows of a table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightship_analyzers.trace.columns import Table
from tightship_analyzers.trace.joins import in_order, numbers_in, order_of

TABLE = Table(start_ns=np.arange(5) * 10, end_ns=np.arange(5) * 10 + 3)


@pytest.mark.parametrize("rows", [[], [2], [1, 2, 3], [3, 2, 1], [0, 2, 1, 3], [0, 0], [4, 4, 4], [0, 1, 3, 3]])
def test_rows_by_number(rows: list[int]) -> None:
    chosen = TABLE.take(np.array(rows, dtype=np.int64))
    assert chosen.start_ns.tolist() == [row * 10 for row in rows]
    assert chosen.end_ns.tolist() == [row * 10 + 3 for row in rows]


@pytest.mark.parametrize("mask", ["00000", "00100", "01110", "11111", "10101"])
def test_rows_by_mask(mask: str) -> None:
    chosen = TABLE.take(np.array([bit == "1" for bit in mask]))
    assert chosen.start_ns.tolist() == [row * 10 for row, bit in enumerate(mask) if bit == "1"]


def test_rows_that_follow_one_another_are_not_copied() -> None:
    assert np.shares_memory(TABLE.take(np.array([1, 2, 3])).start_ns, TABLE.start_ns)
    assert not np.shares_memory(TABLE.take(np.array([1, 3])).start_ns, TABLE.start_ns)


@pytest.mark.parametrize("column", [[], [-1], [3, 0, 3, -1, 7], [5, 5, 5]])
def test_the_numbers_in_a_column(column: list[int]) -> None:
    assert numbers_in(np.array(column, dtype=np.int32)).tolist() == sorted(set(column))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3))))
def test_the_order_of_rows(rows: list[tuple[int, int]]) -> None:
    start, dur = (np.array([row[side] for row in rows], dtype=np.int64) for side in (0, 1))
    expected = sorted(range(len(rows)), key=lambda row: (rows[row][0], -rows[row][1]))
    assert order_of(start, dur).tolist() == expected
    assert in_order(start, dur) == (rows == [rows[row] for row in expected])
