"""Exact algebra of sets of time, in integer nanoseconds.

A set of time is a union of half-open intervals [start, end). All operations are vectorised, O(n log n) at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tightship_analyzers.trace.columns import Bools, Int64s, Table


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """A set of time: intervals that are sorted, not empty, and neither overlap nor touch.

    Make one with `Intervals.of`, which brings any intervals into this form.
    """

    start_ns: Int64s
    end_ns: Int64s

    @classmethod
    def of(cls, start_ns: ArrayLike, end_ns: ArrayLike) -> Intervals:
        """The union of any intervals: in any order, overlapping, touching; empty and reversed ones count nothing."""
        start, end = np.asarray(start_ns, dtype=np.int64), np.asarray(end_ns, dtype=np.int64)
        filled = end > start
        if not filled.all():
            start, end = start[filled], end[filled]
        if not len(start):
            return cls(start, end)
        if (np.diff(start) < 0).any():
            order = np.argsort(start, kind="stable")
            start, end = start[order], end[order]
        reach = np.maximum.accumulate(end)
        begins = np.append(True, start[1:] > reach[:-1])
        first = np.flatnonzero(begins)
        last = np.append(first[1:] - 1, len(start) - 1)
        return cls(start[first], reach[last])

    @classmethod
    def of_table(cls, table: Table) -> Intervals:
        """The time that the rows of a table cover."""
        return cls.of(table.start_ns, table.end_ns)

    @classmethod
    def one(cls, start_ns: int, end_ns: int) -> Intervals:
        """A single interval, or nothing where it is empty."""
        return cls.of([start_ns], [end_ns])

    @classmethod
    def none(cls) -> Intervals:
        """The empty set."""
        return cls.of([], [])

    def __len__(self) -> int:
        return len(self.start_ns)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self.start_ns.tolist(), self.end_ns.tolist(), strict=True)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Intervals):
            return NotImplemented
        return np.array_equal(self.start_ns, other.start_ns) and np.array_equal(self.end_ns, other.end_ns)

    __hash__ = None  # type: ignore[assignment]

    @property
    def measure_ns(self) -> int:
        """How much time the set holds."""
        return int((self.end_ns - self.start_ns).sum())

    def __or__(self, other: Intervals) -> Intervals:
        return Intervals.of(
            np.concatenate((self.start_ns, other.start_ns)), np.concatenate((self.end_ns, other.end_ns))
        )

    def __and__(self, other: Intervals) -> Intervals:
        first = np.searchsorted(other.end_ns, self.start_ns, side="right")
        stop = np.searchsorted(other.start_ns, self.end_ns, side="left")
        counts = np.maximum(stop - first, 0)
        mine = np.repeat(np.arange(len(self)), counts)
        # 0, 1, … within each run of partners, added to the first partner of the run.
        within = np.arange(len(mine)) - np.repeat(np.cumsum(counts) - counts, counts)
        theirs = first[mine] + within
        start = np.maximum(self.start_ns[mine], other.start_ns[theirs])
        end = np.minimum(self.end_ns[mine], other.end_ns[theirs])
        return Intervals(start, end)

    def __sub__(self, other: Intervals) -> Intervals:
        if not len(self) or not len(other):
            return self
        return self & other.gaps(int(self.start_ns[0]), int(self.end_ns[-1]))

    def clip(self, start_ns: int, end_ns: int) -> Intervals:
        """What lies within [start_ns, end_ns)."""
        return self & Intervals.one(start_ns, end_ns)

    def gaps(self, start_ns: int, end_ns: int) -> Intervals:
        """What of [start_ns, end_ns) is not in the set."""
        inside = self.clip(start_ns, end_ns)
        return Intervals.of(np.append(start_ns, inside.end_ns), np.append(inside.start_ns, end_ns))

    def contains(self, at_ns: Int64s) -> Bools:
        """For each moment: is it in the set?"""
        row = np.searchsorted(self.start_ns, at_ns, side="right") - 1
        inside = row >= 0
        inside[inside] = np.asarray(at_ns)[inside] < self.end_ns[row[inside]]
        return inside

    def meets(self, start_ns: Int64s, end_ns: Int64s) -> Bools:
        """For each interval [start, end), which may overlap one another: does it share time with the set?"""
        following = np.searchsorted(self.end_ns, start_ns, side="right")
        begins = np.append(self.start_ns, np.iinfo(np.int64).max)[following]
        return np.asarray(begins < end_ns) & (start_ns < end_ns)

    def covered_before(self, at_ns: Int64s) -> Int64s:
        """For each moment: how much of the set lies before it."""
        upto = np.append(0, np.cumsum(self.end_ns - self.start_ns))
        count = np.searchsorted(self.start_ns, at_ns, side="right")
        covered = np.asarray(upto[count], dtype=np.int64)
        begun = count > 0
        beyond = self.end_ns[count[begun] - 1] - np.asarray(at_ns)[begun]
        covered[begun] -= np.maximum(beyond, 0)
        return covered

    def overlap_ns(self, start_ns: Int64s, end_ns: Int64s) -> Int64s:
        """For each interval [start, end), which may overlap one another: how much of it is in the set."""
        return np.asarray(np.maximum(self.covered_before(end_ns) - self.covered_before(start_ns), 0), dtype=np.int64)


def union_of(parts: Iterable[Intervals]) -> Intervals:
    """The union of many sets, in one pass."""
    given = list(parts)
    if not given:
        return Intervals.none()
    return Intervals.of(
        np.concatenate([part.start_ns for part in given]), np.concatenate([part.end_ns for part in given])
    )
