"""Choosing rows of a table."""

from __future__ import annotations

import numpy as np
import pytest

from tightship_analyzers.trace.columns import Table
from tightship_analyzers.trace.joins import numbers_in

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
