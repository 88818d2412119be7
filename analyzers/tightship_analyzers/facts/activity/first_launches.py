"""What happens once only because it happens for the first time: code that is loaded, kernels that are chosen."""

from __future__ import annotations

import re

import numpy as np

from tightship_analyzers.trace.columns import Bools, HostOps, Int64s
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.joins import first_rows, numbers_in
from tightship_analyzers.trace.model import Trace
from tightship_analyzers.trace.names import matcher

LOADING_NS = 1_000_000
"""A launch takes 5 to 50 µs. Source: in the reference traces (V100, RTX 2080 Ti, MI250) first launches that load take
from 1.3 ms to 4 s; a product of new shapes (B200) takes 1.5 to 2.5 ms once, then 0.1 ms."""
KERNEL_LAUNCH = re.compile(r"(cu|cuda|hip)(Ext)?(Module)?Launch(Cooperative)?Kernel\w*")


def loading_launches(trace: Trace, tid: int) -> Intervals:
    """Calls of a thread that took long and launched a kernel for the first time in the recording.

    [Note: lazy loading] CUDA (`CUDA_MODULE_LOADING=LAZY`, the default since 12.2) and HIP load a kernel's code when it
    is launched first. Kineto names that only sometimes. A long launch of a kernel that ran before is something else: as
    a rule the queue of the device was full.
    """
    calls, events = trace.launches, trace.device_events
    long = calls.end_ns - calls.start_ns > LOADING_NS
    long &= trace.names.mask(calls.name, matcher(KERNEL_LAUNCH))
    slow = long & (calls.tid == tid)
    if not slow.any():
        return Intervals.none()
    linked = np.flatnonzero(events.launch >= 0)
    in_order = linked[np.argsort(calls.start_ns[events.launch[linked]], kind="stable")]
    _, first = np.unique(events.name[in_order], return_index=True)
    is_first = np.zeros(len(calls), dtype=np.bool_)
    is_first[events.launch[in_order[first]]] = True
    return Intervals.of(calls.start_ns[slow & is_first], calls.end_ns[slow & is_first])


def choosing_operators(trace: Trace, tid: int) -> Intervals:
    """Own time of a thread's operators that launched a kernel with their shapes for the first time in the recording,
    and took much longer than the same operator later.

    [Note: the first call of a shape] cuBLAS, cuDNN and their HIP counterparts choose a kernel for shapes that are new
    to them, by heuristics or by trying, and load it. On the host an operator that launches a kernel takes as long for
    one shape as for another: what it takes later says what the choice cost. Where shapes were not recorded, kernel and
    grid stand for them.
    """
    ops = trace.host_ops
    rows = np.flatnonzero((ops.tid == tid) & (ops.dur_ns > LOADING_NS))
    rows = rows[launched_in(trace, ops.take(rows)) >= 0]
    if not len(rows):
        return Intervals.none()
    # Innermost ones: what begins next on the thread begins after their end.
    begins_ns = np.append(ops.start_ns[ops.tid == tid], np.iinfo(np.int64).max)
    rows = rows[begins_ns[np.searchsorted(begins_ns, ops.start_ns[rows], side="right")] >= ops.end_ns[rows]]
    calls = Intervals.of_table(trace.launches.take(trace.launches.tid == tid))
    own_ns = ops.dur_ns[rows] - calls.overlap_ns(ops.start_ns[rows], ops.end_ns[rows])
    alike = np.flatnonzero(np.isin(ops.name, ops.name[rows]))
    again = alike[~_is_first(trace, ops.take(alike))]
    chosen = np.zeros(len(rows), dtype=np.bool_)
    for name in numbers_in(ops.name[rows]).tolist():
        later = again[ops.name[again] == name]
        if len(later):
            usual_ns = int(np.median(ops.dur_ns[later]))
            chosen |= (ops.name[rows] == name) & (own_ns - usual_ns > LOADING_NS) & ~np.isin(rows, later)
    return Intervals.of(ops.start_ns[rows[chosen]], ops.end_ns[rows[chosen]]) - calls


def launched_in(trace: Trace, ops: HostOps) -> Int64s:
    """(operators,) row in `Trace.launches` of the first kernel's launch within each, on its thread; -1: none."""
    calls, found = trace.launches, np.full(len(ops), -1, dtype=np.int64)
    launches = np.flatnonzero(trace.names.mask(calls.name, matcher(KERNEL_LAUNCH)))
    for thread in numbers_in(ops.tid).tolist():
        own, rows = launches[calls.tid[launches] == thread], np.flatnonzero(ops.tid == thread)
        if not len(own):
            continue
        at = own[np.minimum(np.searchsorted(calls.start_ns[own], ops.start_ns[rows]), len(own) - 1)]
        inside = (calls.start_ns[at] >= ops.start_ns[rows]) & (calls.end_ns[at] <= ops.end_ns[rows])
        found[rows[inside]] = at[inside]
    return found


def _is_first(trace: Trace, ops: HostOps) -> Bools:
    """(operators, by start) is it the first one with its name and shapes; without shapes, with its kernel and grid?"""
    events = trace.device_events
    linked = np.flatnonzero(events.launch >= 0)[::-1]
    event = np.full(len(trace.launches) + 1, -1, dtype=np.int64)
    event[events.launch[linked]] = linked
    started = np.where(ops.shapes < 0, event[launched_in(trace, ops)], -1)
    kernel, blocks = np.append(events.name, -1)[started], np.append(events.blocks, -1)[started]
    is_first = np.zeros(len(ops), dtype=np.bool_)
    is_first[first_rows(ops.name, ops.shapes, kernel, blocks)] = True
    return is_first
