"""Which of some operators encloses a call."""

from __future__ import annotations

import numpy as np

from tightship_analyzers.trace.joins import numbers_in
from tightship_analyzers.trace.model import HostOps, Int32s, Int64s


def outermost(tid: Int32s, start_ns: Int64s, end_ns: Int64s, ops: HostOps) -> Int64s:
    """(calls,) row in `ops` of the outermost one that encloses each call on its thread; -1 where none does."""
    found = np.full(len(tid), -1, dtype=np.int64)
    for thread in numbers_in(tid).tolist() if len(ops) else ():
        own = np.flatnonzero(ops.tid == thread)
        if not len(own):
            continue
        end = ops.end_ns[own]
        latest = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(end)[:-1]))
        outer = own[end > latest]
        rows = np.flatnonzero(tid == thread)
        at = np.searchsorted(ops.start_ns[outer], start_ns[rows], side="right") - 1
        inside = (at >= 0) & (ops.end_ns[outer[at]] >= end_ns[rows])
        found[rows[inside]] = outer[at[inside]]
    return found
