"""Which of nested ranges is the innermost one at any moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from tightship_analyzers.trace.columns import Bools, Int32s, Int64s

BLOCK = 2**16
"""Rows that are Python numbers at a time: as such they take ten times the memory."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenRows:
    """A step function of time: the row that was opened last and is still open.

    For calls of one thread, which nest, that is the innermost call. Recorded times do not always nest: rounding to
    whole microseconds lets a call end after its caller. It is taken to end with its caller then.
    """

    at_ns: Int64s
    """Where the answer changes, ascending; of equal moments the last one counts."""
    row: Int32s
    """(changes,) the row from here on; -1: none."""
    parent: Int32s
    """(rows,) the row that was open when this one began; -1: none."""

    @classmethod
    def of(cls, start_ns: Int64s, end_ns: Int64s) -> Self:
        """Rows are sorted by start, of those that start together the longer one first."""
        begun = np.flatnonzero(end_ns > start_ns)
        start = start_ns[begun]
        end, parent = _nested(start, end_ns[begun])
        # Of those that end together the inner ones, which began later, come first.
        by_end = len(end) - 1 - np.argsort(end[::-1], kind="stable")
        # What ends at a moment comes before what begins then.
        begins_at = np.arange(len(start)) + np.searchsorted(end[by_end], start, side="right")
        is_end = np.ones(2 * len(start), dtype=np.bool_)
        is_end[begins_at] = False
        at_ns = np.empty(2 * len(start), dtype=np.int64)
        row = np.empty(2 * len(start), dtype=np.int32)
        numbers = np.append(begun, -1).astype(np.int32)
        at_ns[begins_at], row[begins_at] = start, begun
        at_ns[is_end], row[is_end] = end[by_end], numbers[parent[by_end]]
        answer = cls(at_ns, row, numbers[parent])
        if len(begun) == len(start_ns):
            return answer
        # A row without length opens nothing, and is the last one to begin at its moment.
        parents = answer.at(start_ns)
        parents[begun] = answer.parent
        return cls(at_ns, row, parents)

    def at(self, moments_ns: Int64s) -> Int32s:
        """(moments,) the innermost row; -1 where none is open."""
        place = np.searchsorted(self.at_ns, moments_ns, side="right") - 1
        return np.append(self.row, np.int32(-1))[place]


def _nested(start_ns: Int64s, end_ns: Int64s) -> tuple[Int64s, Int64s]:
    """(rows,) end of each row, not after that of its parent; and the parent, -1 for an outermost row."""
    parent, nests = _parents(start_ns, end_ns)
    if nests.all():
        return end_ns, parent
    # Row by row, but only from where nothing is open to where nothing is open again, around rows that do not nest.
    fresh = np.append(True, start_ns[1:] >= np.maximum.accumulate(end_ns)[:-1])
    stretch = np.cumsum(fresh) - 1
    crossed = np.zeros(int(stretch[-1]) + 1, dtype=np.bool_)
    crossed[stretch[~nests]] = True
    end = end_ns.copy()
    rows = np.flatnonzero(crossed[stretch])
    opened: list[int] = []
    ends: list[int] = []
    for begin in range(0, len(rows), BLOCK):
        block = rows[begin : begin + BLOCK]
        for row, start, stop in zip(block.tolist(), start_ns[block].tolist(), end_ns[block].tolist(), strict=True):
            while ends and ends[-1] <= start:
                ends.pop()
                opened.pop()
            parent[row] = opened[-1] if opened else -1
            ends.append(min(stop, ends[-1]) if ends else stop)
            opened.append(row)
            end[row] = ends[-1]
    return end, parent


def _parents(start_ns: Int64s, end_ns: Int64s) -> tuple[Int64s, Bools]:
    """(rows,) the row around each one, -1: none; and whether it lies within that row, as it does if all rows nest."""
    count = len(start_ns)
    parent, nests = np.full(count, -1, dtype=np.int64), np.ones(count, dtype=np.bool_)
    if not count:
        return parent, nests
    # As many rows are open as have begun and not ended; of those, the last one a level further out is around it.
    depth = np.arange(count) - np.searchsorted(np.sort(end_ns), start_ns, side="right")
    by_depth = np.argsort(depth.astype(np.int32), kind="stable")
    bounds = np.append(0, np.cumsum(np.bincount(depth)))
    for level in range(1, len(bounds) - 1):
        above = by_depth[bounds[level - 1] : bounds[level]]
        own = by_depth[bounds[level] : bounds[level + 1]]
        around = above[np.maximum(np.searchsorted(above, own) - 1, 0)]
        parent[own] = around
        nests[own] = (end_ns[around] > start_ns[own]) & (end_ns[own] <= end_ns[around])
    return parent, nests
