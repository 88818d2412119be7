"""Orders and joins between the tables of a trace."""

from __future__ import annotations

import numpy as np

from tightship_analyzers.trace.columns import Int32s, Int64s, Launches


def in_order(start_ns: Int64s, dur_ns: Int64s) -> bool:
    """Do the rows start one after the other, of two that start together the longer one first?"""
    step = np.diff(start_ns)
    return bool(((step > 0) | ((step == 0) & (np.diff(dur_ns) <= 0))).all())


def order_of(start_ns: Int64s, dur_ns: Int64s) -> Int64s:
    """The rows in that order; of rows that are alike the first one first."""
    # Events come thread by thread, so their starts are a few ascending runs: sorted by themselves, that is soon done.
    order = np.argsort(start_ns, kind="stable")
    same = np.diff(start_ns[order]) == 0
    together = np.zeros(len(order), dtype=np.bool_)
    together[1:] |= same
    together[:-1] |= same
    rows = order[together]
    order[together] = rows[np.lexsort((-dur_ns[rows], start_ns[rows]))]
    return order


def new_rows(rows: Int64s, old: Int64s) -> Int64s:
    """Where the gathered rows `old` ended up, given the gathered row of each final one; -1 where dropped."""
    size = max(int(rows.max(initial=-1)), int(old.max(initial=-1))) + 1
    place = np.full(size, -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    return place[old]


def launch_rows(launches: Launches, correlation: Int64s, start_ns: Int64s) -> Int64s:
    """The row of each event's launch: same correlation, and of several the last that began before the event.

    -1 where no call has the correlation; 0 and below are no correlations.
    """
    order = np.lexsort((launches.start_ns, launches.correlation))
    ids = launches.correlation[order]
    first = np.searchsorted(ids, correlation, side="left")
    stop = np.searchsorted(ids, correlation, side="right")
    row = np.full(len(correlation), -1, dtype=np.int64)
    found = (stop > first) & (correlation > 0)
    row[found] = order[first[found]]
    for event in np.flatnonzero(found & (stop > first + 1)).tolist():
        same = order[first[event] : stop[event]]
        before = int(np.searchsorted(launches.start_ns[same], start_ns[event], side="right"))
        row[event] = same[max(before - 1, 0)]
    return row


def numbers_in(column: Int32s | Int64s) -> Int64s:
    """The distinct numbers of a column of rows (of names, threads, calls), from -1 on, ascending; see below."""
    return np.flatnonzero(np.bincount(column + 1)) - 1


def sorted_distinct(values: Int64s) -> Int64s:
    """As `np.unique`, whose hash table takes a hundred times as long on a million moments in order (NumPy 2.4)."""
    ordered: Int64s = np.sort(values, kind="stable")
    return np.compress(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)], ordered)


def first_rows(*columns: Int32s | Int64s) -> Int64s:
    """The first row of each combination of values, ascending."""
    order = np.lexsort(columns)
    differs = np.ones(len(order), dtype=np.bool_)
    if len(order):
        differs[1:] = np.any([np.diff(column[order]) != 0 for column in columns], axis=0)
    rows: Int64s = np.sort(order[differs])
    return rows
