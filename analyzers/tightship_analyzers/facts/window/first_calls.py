"""The start of a process on its device: calls that create the context and load libraries, once a run."""

from __future__ import annotations

import numpy as np

from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Trace
from tightship_analyzers.trace.runtime_calls import Blocks, what_blocks

FIRST_CALL_NS = 100_000_000
"""A call that takes so long on an idle device starts something up. Source: in the reference traces (V100, A100, H100,
B200, RTX 2080 Ti, MI250, MI300X) such calls of 109 ms to 30 s create the context, streams, or load libraries; all
others on an idle device take at most 17 ms."""

WAITS = (Blocks.DEVICE, Blocks.STREAM, Blocks.EVENT, Blocks.COPY)


def first_calls(trace: Trace) -> Intervals:
    """Runtime calls that start the device up: long ones that wait for nothing, while all that was launched before is
    done. Empty where the trace holds no device events, which alone tell that."""
    calls, events = trace.launches, trace.device_events
    if not len(events):
        return Intervals.none()
    rows = np.flatnonzero(calls.dur_ns >= FIRST_CALL_NS)
    rows = rows[~np.isin(what_blocks(trace)[rows], WAITS)]
    if not len(rows):
        return Intervals.none()
    linked = events.launch >= 0
    launched_ns = np.where(linked, calls.start_ns[events.launch], events.start_ns)
    order = np.argsort(launched_ns, kind="stable")
    done_ns = np.append(0, np.maximum.accumulate(events.end_ns[order]))
    before = np.searchsorted(launched_ns[order], calls.start_ns[rows])
    rows = rows[done_ns[before] <= calls.start_ns[rows]]
    return Intervals.of(calls.start_ns[rows], calls.end_ns[rows])
