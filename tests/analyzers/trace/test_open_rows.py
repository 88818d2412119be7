"""Which row is the innermost open one: against the plain way, row by row, also for rows that do not nest."""

from __future__ import annotations

import numpy as np
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from tightship_analyzers.trace.open_rows import OpenRows

MOMENTS = np.arange(-1, 90)
ROWS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40)), max_size=24)


def plainly(rows: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """The parent of each row, and the innermost row at each of MOMENTS, by a stack of open calls."""
    stack: list[tuple[int, int]] = []
    parents: list[int] = []
    innermost = [-1] * len(MOMENTS)
    effective: list[tuple[int, int, int]] = []
    for row, (start, end) in enumerate(rows):
        while stack and stack[-1][1] <= start:
            stack.pop()
        parents.append(stack[-1][0] if stack else -1)
        if end > start:
            stack.append((row, min(end, stack[-1][1]) if stack else end))
            effective.append((row, start, stack[-1][1]))
    for place, moment in enumerate(MOMENTS.tolist()):
        for row, start, end in effective:
            if start <= moment < end:
                innermost[place] = row
    return parents, innermost


def check(rows: list[tuple[int, int]]) -> None:
    rows = sorted(rows, key=lambda row: (row[0], -row[1]))
    start = np.array([start for start, _ in rows], dtype=np.int64)
    end = np.array([end for _, end in rows], dtype=np.int64)
    found = OpenRows.of(start, end)
    parents, innermost = plainly(rows)
    assert found.parent.tolist() == parents
    assert found.at(MOMENTS).tolist() == innermost


@examples(400)
@given(ROWS)
def test_any_rows(rows: list[tuple[int, int]]) -> None:
    check([(start, start + length) for start, length in rows])


def test_a_call_that_outlasts_its_caller_ends_with_it() -> None:
    check([(0, 10), (5, 12), (11, 20), (12, 13), (30, 40), (31, 39)])


def test_deep_nesting_and_long_rows_of_siblings() -> None:
    check([(depth, 80 - depth) for depth in range(30)] + [(at, at + 1) for at in range(31, 45)])


def test_no_rows() -> None:
    check([])
