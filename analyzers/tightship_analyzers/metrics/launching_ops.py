"""Which host operator a runtime call was made by: the innermost one that was open on its thread."""

from __future__ import annotations

import numpy as np

from tightship_analyzers.trace.columns import HostOps, Int64s, Launches
from tightship_analyzers.trace.joins import numbers_in
from tightship_analyzers.trace.open_rows import OpenRows


def launching_ops(ops: HostOps, launches: Launches) -> Int64s:
    """The row in `ops` of the innermost operator around the start of each launch; -1 where none is open."""
    result = np.full(len(launches), -1, dtype=np.int64)
    for tid in numbers_in(launches.tid).tolist():
        calls = np.flatnonzero(launches.tid == tid)
        own = np.flatnonzero(ops.tid == tid)
        if len(own):
            found = innermost(ops.start_ns[own], ops.end_ns[own], launches.start_ns[calls])
            result[calls] = np.where(found >= 0, own[found], -1)
    return result


def innermost(start_ns: Int64s, end_ns: Int64s, at_ns: Int64s) -> Int64s:
    """For each moment the row of the deepest interval [start, end) that holds it; -1 where none does.

    The intervals are those of one thread, in order of start, of two that start together the longer one first.
    """
    return OpenRows.of(start_ns, end_ns).at(at_ns).astype(np.int64)
