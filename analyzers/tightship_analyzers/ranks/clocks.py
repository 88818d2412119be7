"""Which collectives of several ranks belong together, and how far the ranks' clocks are apart.

[Note: ends are the common clock] Ranks arrive at a collective one after the other, but leave it together: no rank can
have the result before the last has come. So the ends of one collective, seen by the clocks of two ranks, differ by the
difference of the clocks and a few microseconds. The median over all collectives of a rank's distance from the other
ranks' ends is what its clock is off. With a common base time it is small, and anything large says that the trace was
cut, or that the wrong collectives were put together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np

from tightship_analyzers.ranks.arrivals import CollectiveArrivals, Key
from tightship_analyzers.trace.columns import Bools, Int64s
from tightship_platform.results.not_applicable import NotApplicable

LEAST_TOGETHER_FRAC = 0.5
"""Of the collectives that were put together, so many have to run on all their ranks at one moment."""
MIN_TO_ALIGN = 3
"""Collectives of a kernel above which the clocks say which belong together."""
MOST_SHIFT = 4
"""Ordinals that one rank may be ahead beyond the difference in number."""
CLOSE_FRAC = 0.25
"""Of the typical time between two collectives: ends that belong together are closer."""
MOST_BASE_ERROR_NS = 60 * 10**9
"""Clocks of one cluster that count from the epoch are closer than this; a greater difference is another capture."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Matched:
    """The collectives that several ranks took part in, on one clock."""

    ranks: tuple[int, ...]
    keys: tuple[Key, ...]
    """(collectives,) in order of the last arrival."""
    start_ns: Int64s
    """(collectives, ranks) arrival on the common clock; ABSENT where the rank took no part."""
    step: Int64s
    """(collectives, ranks) number of the rank's whole step in which it was launched; -1 outside of all."""
    offset_ns: dict[int, int]
    """rank → what was added to its times."""
    left_out: int
    """Collectives of any rank that have no partner, or whose partners did not run at one moment."""

    def take(self, rows: Bools) -> Matched:
        """Some of the collectives."""
        return replace(
            self,
            keys=tuple(compress(self.keys, rows.tolist())),
            start_ns=self.start_ns[rows],
            step=self.step[rows],
        )


ABSENT = np.iinfo(np.int64).min


def match(arrivals: Mapping[int, CollectiveArrivals]) -> Matched | NotApplicable:
    """Put the ranks' collectives together by number, or else by order, and bring the ranks to one clock."""
    ranks = tuple(sorted(arrivals))
    if len(ranks) < 2:
        return NotApplicable("needs the traces of at least two ranks with collectives")
    keys, start, end, step = _table(arrivals, ranks)
    total = sum(len(arrivals[rank]) for rank in ranks)
    if not len(keys):
        return NotApplicable("needs collectives that several ranks took part in; the traces share none")
    present = start != ABSENT
    offset = _offsets(end, present)
    known = all(arrivals[rank].absolute for rank in ranks)
    if known and int(np.abs(offset).max()) > MOST_BASE_ERROR_NS:
        return NotApplicable("needs traces of one capture; the ranks' collectives are more than a minute apart")
    start = np.where(present, start + offset, ABSENT)
    end = np.where(present, end + offset, ABSENT)
    last = np.where(present, start, ABSENT).max(axis=1)
    first_end = np.where(present, end, np.iinfo(np.int64).max).min(axis=1)
    sound = last <= first_end
    if sound.mean() < LEAST_TOGETHER_FRAC:
        return NotApplicable(
            f"needs collectives that belong together; {int((~sound).sum())} of {len(keys)} that do by their "
            "order never ran on all ranks at one moment (a trace with events left out, or one that was cut)"
        )
    rows = np.flatnonzero(sound)
    rows = rows[np.argsort(last[rows], kind="stable")]
    return Matched(
        ranks=ranks,
        keys=tuple(keys[row] for row in rows.tolist()),
        start_ns=start[rows],
        step=step[rows],
        offset_ns={rank: int(offset[column]) for column, rank in enumerate(ranks)},
        left_out=total - int(present[rows].sum()),
    )


def _table(
    arrivals: Mapping[int, CollectiveArrivals], ranks: tuple[int, ...]
) -> tuple[list[Key], Int64s, Int64s, Int64s]:
    """Keys that two ranks or more have, and arrival, end and step by (key, rank).

    What is known by its order only counts where all ranks that have the kernel have it as often, or where their clocks
    tell which belong together.
    """
    shifts = _shifts(arrivals, ranks)
    rows: dict[Key, int] = {}
    cells: list[tuple[int, int, int, int, int]] = []
    for column, rank in enumerate(ranks):
        one = arrivals[rank]
        for place, (key, numbered) in enumerate(zip(one.keys, one.numbered.tolist(), strict=True)):
            shift = 0 if numbered else shifts[key[0]].get(rank)
            if shift is not None:
                row = rows.setdefault((key[0], key[1], key[2] - shift), len(rows))
                cells.append((row, column, int(one.start_ns[place]), int(one.end_ns[place]), int(one.step[place])))
    start = np.full((len(rows), len(ranks)), ABSENT, dtype=np.int64)
    end = np.full((len(rows), len(ranks)), ABSENT, dtype=np.int64)
    step = np.full((len(rows), len(ranks)), -1, dtype=np.int64)
    for row, column, begin_ns, until_ns, number in cells:
        start[row, column], end[row, column], step[row, column] = begin_ns, until_ns, number
    shared = np.flatnonzero((start != ABSENT).sum(axis=1) >= 2)
    keys = list(rows)
    return [keys[row] for row in shared.tolist()], start[shared], end[shared], step[shared]


def _shifts(arrivals: Mapping[int, CollectiveArrivals], ranks: tuple[int, ...]) -> dict[str, dict[int, int]]:
    """Kernel → rank → by how many its ordinals are ahead of the first rank's, for what is known by its order only.

    0 where all ranks have it as often. Otherwise (the recordings began or ended between two of them) by the clocks,
    where they count from the epoch; ranks that do not fit are left out.
    """
    ends: dict[str, dict[int, Int64s]] = {}
    for rank in ranks:
        own: dict[str, list[int]] = {}
        one = arrivals[rank]
        for (kernel, _, _), numbered, end_ns in zip(one.keys, one.numbered.tolist(), one.end_ns.tolist(), strict=True):
            if not numbered:
                own.setdefault(kernel, []).append(end_ns)
        for kernel, times in own.items():
            ends.setdefault(kernel, {})[rank] = np.array(times, dtype=np.int64)
    found: dict[str, dict[int, int]] = {}
    for kernel, by_rank in ends.items():
        if len({len(times) for times in by_rank.values()}) == 1:
            found[kernel] = dict.fromkeys(by_rank, 0)
            continue
        first, *others = by_rank
        found[kernel] = {first: 0}
        if all(arrivals[rank].absolute for rank in by_rank):
            shifts = {rank: _shift(by_rank[first], by_rank[rank]) for rank in others}
            found[kernel] |= {rank: shift for rank, shift in shifts.items() if shift is not None}
    return found


def _shift(first: Int64s, other: Int64s) -> int | None:
    """By how many ordinals `other` is ahead, so that ends fall together; None where no shift brings them close."""
    if min(len(first), len(other)) < MIN_TO_ALIGN:
        return None
    least_ns = CLOSE_FRAC * float(np.median(np.diff(first)))
    most = abs(len(first) - len(other)) + MOST_SHIFT
    best = None
    for shift in range(-most, most + 1):
        here, there = first[max(0, -shift) :], other[max(0, shift) :]
        both = min(len(here), len(there))
        if 2 * both < min(len(first), len(other)):
            continue
        apart_ns = float(np.median(np.abs(here[:both] - there[:both])))
        if apart_ns < least_ns:
            best, least_ns = shift, apart_ns
    return best


def _offsets(end: Int64s, present: np.ndarray[tuple[int, int], np.dtype[np.bool_]]) -> Int64s:
    """What to add to each rank's times (ranks,), so that collectives end at one moment; the first rank's clock stays.

    Found from rank to rank along shared collectives, as process groups need not hold all ranks.
    """
    ranks = end.shape[1]
    offset = np.zeros(ranks, dtype=np.int64)
    known = np.zeros(ranks, dtype=np.bool_)
    while not known.all():
        if not known.any() or not _reachable(present, known).any():
            known[int(np.flatnonzero(~known)[0])] = True
            continue
        column = int(np.flatnonzero(_reachable(present, known))[0])
        rows = np.flatnonzero(present[:, column] & (present & known).any(axis=1))
        ends = np.where(present[rows] & known, end[rows] + offset, np.iinfo(np.int64).max)
        offset[column] = lower_medians((lower_medians(ends) - end[rows, column])[None, :])[0]
        known[column] = True
    return offset


def _reachable(
    present: np.ndarray[tuple[int, int], np.dtype[np.bool_]], known: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Ranks that share a collective with a known one."""
    with_known = (present & known).any(axis=1)
    return np.asarray(present[with_known].any(axis=0) & ~known)


def lower_medians(values: Int64s) -> Int64s:
    """The lower median of each row, of what is not the greatest int64.

    numpy's own would pass through floats, which do not hold nanoseconds since the epoch.
    """
    counts = (values != np.iinfo(np.int64).max).sum(axis=1)
    return np.asarray(np.sort(values, axis=1)[np.arange(len(values)), (counts - 1) // 2], dtype=np.int64)
