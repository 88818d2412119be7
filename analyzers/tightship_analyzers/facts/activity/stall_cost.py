"""What it costs the device that the host stood still for a while."""

from __future__ import annotations

import numpy as np

from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Int64s


def stall_cost(start_ns: Int64s, end_ns: Int64s, gaps: Intervals) -> tuple[Int64s, Int64s]:
    """For each stall [start, end) of the host: the part [start, end) of a device gap that it caused, maybe empty.

    [Note: the cost of a stall] While the host stands still for w ns it issues nothing. The device finishes what it
    has, the stall ends, and the device then waits until the host has issued the next kernel. Without the stall that
    kernel would have been issued w earlier, so of the gap that is open when the stall ends at most w would go. The
    cost is this part of the gap: it begins when the device became idle, or with the stall where it was idle already.
    """
    if not len(gaps) or not len(start_ns):
        return start_ns, start_ns
    gap = np.searchsorted(gaps.start_ns, end_ns, side="right") - 1
    is_open = (gap >= 0) & (gaps.end_ns[gap] > end_ns)
    # A stall that ends with the gap, to the ns, has caused it all the same.
    ends_with = (gap >= 0) & (gaps.end_ns[gap] == end_ns)
    dry_ns = np.maximum(gaps.start_ns[gap], start_ns)
    until_ns = np.minimum(gaps.end_ns[gap], dry_ns + (end_ns - start_ns))
    return dry_ns, np.where(is_open | ends_with, until_ns, dry_ns)


def idle_through(start_ns: Int64s, end_ns: Int64s, gaps: Intervals) -> Intervals:
    """Device time that stalls cost which feed the device meanwhile, such as copies: gaps during them, and what they
    leave behind, together no longer than each stall."""
    until_ns = left_behind(start_ns, end_ns, gaps)
    return (Intervals.of(start_ns, end_ns) & gaps) | Intervals.of(end_ns, until_ns)


def left_behind(start_ns: Int64s, end_ns: Int64s, gaps: Intervals) -> Int64s:
    """(stalls,) until when the gap that is open at the end of each stall is due to it: the stall's end where none is.

    Of the stall's length, what the gaps during it have not taken.
    """
    if not len(gaps) or not len(start_ns):
        return end_ns
    gap = np.searchsorted(gaps.start_ns, end_ns, side="right") - 1
    is_open = (gap >= 0) & (gaps.end_ns[gap] > end_ns)
    left_ns = np.maximum(end_ns - start_ns - gaps.overlap_ns(start_ns, end_ns), 0)
    return np.where(is_open, np.minimum(gaps.end_ns[gap], end_ns + left_ns), end_ns)
