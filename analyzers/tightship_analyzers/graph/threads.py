"""Which thread waits for which: autograd's thread and the one that called for the backward pass.

[Note: hand-over] torch evaluates a backward pass on its own thread, while the caller stands still until it is
done. The trace shows no call for that on the caller, only a pause between two of its events in which all of a burst of
the other thread's events lies. Such a burst begins after the caller's last event, and the caller goes on after the
burst. The caller may also take part, for it evaluates what belongs to the CPU itself: then it goes on in the middle of
a burst, after the other thread's last event so far. That is assumed of pauses of LONG_NS and more; in shorter ones the
two run side by side.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from tightship_analyzers.trace.columns import Bools, Int32s, Int64s
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.joins import sorted_distinct
from tightship_analyzers.trace.model import Trace
from tightship_analyzers.trace.names import matcher

LONG_NS = 100_000
"""A pause of the caller beside an active backward thread that is longer than dispatch from Python takes (5–100 µs)."""
AUTOGRAD_NODE = "autograd::engine::evaluate_function: "
"""An operator that evaluates a node of the backward graph; the node's name follows."""
BARE_NODE = re.compile(r"torch::autograd::\w+|\w+Backward\d*")
"""The same before PyTorch 1.9, by the node's own name."""


@dataclass(frozen=True, slots=True, eq=False)
class HandOvers:
    """Bursts of one thread for which another one waited, each (bursts,)."""

    caller: Int32s
    """Threads: the one that waits,"""
    worker: Int32s
    """and the one that works."""
    left_ns: Int64s
    """The caller's last event before,"""
    begun_ns: Int64s
    """first and"""
    done_ns: Int64s
    """last moment of the burst,"""
    resumed_ns: Int64s
    """and the caller's first event after it."""

    @classmethod
    def none(cls) -> HandOvers:
        """No bursts."""
        threads, times = np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)
        return cls(threads, threads, times, times, times, times)


def calling_thread(trace: Trace) -> int:
    """The thread that ran most operators that are not part of a backward pass; -1 where none ran any."""
    ops = trace.host_ops
    if not len(ops):
        return int(np.bincount(trace.launches.tid).argmax()) if len(trace.launches) else -1
    backward = backward_nodes(trace)
    counts = np.bincount(ops.tid)
    weight = np.bincount(ops.tid[backward], minlength=len(counts))
    return int(np.where(weight > counts // 50, -1, counts).argmax())


def backward_nodes(trace: Trace) -> Bools:
    """(operators,) does it evaluate a node of the backward graph?"""
    names, ops = trace.names, trace.host_ops
    nodes = names.mask(ops.name, lambda name: name.startswith(AUTOGRAD_NODE))
    return nodes if nodes.any() else names.mask(ops.name, matcher(BARE_NODE))


def hand_overs(trace: Trace, caller: int, bounds_ns: Int64s) -> HandOvers:
    """All bursts of backward threads within pauses of the caller."""
    ops, links = trace.host_ops, trace.links
    nodes = backward_nodes(trace)
    workers = np.union1d(ops.tid[nodes], links.to_tid[links.to_tid != links.tid])
    parts = [_bursts(trace, caller, worker, bounds_ns) for worker in workers.tolist() if worker != caller]
    parts = [part for part in parts if len(part.caller)] or [HandOvers.none()]
    return HandOvers(*(np.concatenate([getattr(part, name) for part in parts]) for name in HandOvers.__slots__))


def _bursts(trace: Trace, caller: int, worker: int, bounds_ns: Int64s) -> HandOvers:
    edges = sorted_distinct(np.concatenate((*_boundaries(trace, caller), bounds_ns)))
    moments = sorted_distinct(np.concatenate(_boundaries(trace, worker)))
    active = Intervals.of(*(np.concatenate(times) for times in _spans(trace, worker)))
    if len(edges) < 2 or not len(active):
        return HandOvers.none()
    left, resumed = edges[:-1], edges[1:]
    # The worker was idle when the caller left, and began within the pause.
    first = np.searchsorted(active.start_ns, left, side="left")
    begun = active.start_ns[np.minimum(first, len(active) - 1)]
    idle = (first < len(active)) & (begun < resumed)
    idle &= (first == 0) | (active.end_ns[np.maximum(first - 1, 0)] <= left)
    last = np.searchsorted(moments, resumed, side="right") - 1
    done = moments[np.maximum(last, 0)]
    closed = ~active.contains(resumed)
    use = idle & (done > begun) & (closed | (resumed - left >= LONG_NS))
    count = int(use.sum())
    return HandOvers(
        caller=np.full(count, caller, dtype=np.int32),
        worker=np.full(count, worker, dtype=np.int32),
        left_ns=left[use],
        begun_ns=begun[use],
        done_ns=done[use],
        resumed_ns=resumed[use],
    )


def _spans(trace: Trace, tid: int) -> tuple[list[Int64s], list[Int64s]]:
    tables = [table.take(table.tid == tid) for table in (trace.host_ops, trace.launches)]
    return [table.start_ns for table in tables], [table.end_ns for table in tables]


def _boundaries(trace: Trace, tid: int) -> list[Int64s]:
    starts, ends = _spans(trace, tid)
    return [*starts, *ends]
