"""Device work that goes together with the host's calls that issue it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tightship_analyzers.facts.activity.device_busy import DeviceGaps
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.findings.claim import within_window
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.trace.intervals import Intervals, union_of
from tightship_analyzers.trace.joins import numbers_in
from tightship_analyzers.trace.model import HostOps, Int64s


class Issued(NamedTuple):
    """What comes back where neither the work nor its calls are there."""

    claims: Intervals
    """Time of the device within the window: the work itself, and idle time while the host issued it."""
    work: Intervals
    """Of it the work itself."""
    host_ns: int
    """What the host needed to issue it, over the window."""
    without: Edits


def issued(facts: Facts, work: Intervals, rows: Int64s, calls: HostOps) -> Issued:
    """Rows of `Trace.device_events` and the operators that issued them and do nothing else. `work` is the time of the
    rows that nothing else hides."""
    gaps = facts[DeviceGaps].spans
    by_thread = {tid: Intervals.of_table(calls.take(calls.tid == tid)) for tid in numbers_in(calls.tid).tolist()}
    spans = union_of(by_thread.values())
    without = Edits.without_device(rows)
    for tid, own in by_thread.items():
        without |= Edits.without_host(tid, own)
    own_work = within_window(facts, work)
    return Issued(own_work | within_window(facts, gaps & spans), own_work, spans.measure_ns, without)


def calls_of(ops: HostOps, op: Int64s) -> HostOps:
    """The distinct operators of these rows; -1 is none."""
    return ops.take(np.unique(op[op >= 0]))
