"""Launch calls in which the driver loaded the code of a kernel that had not run before."""

from __future__ import annotations

import re

import numpy as np

from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Trace
from tightship_analyzers.trace.names import matcher

LOADING_NS = 1_000_000
"""A launch takes 5 to 50 µs. Source: in the reference traces (V100, RTX 2080 Ti, MI250) first launches that load take
from 1.3 ms to 4 s."""
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
