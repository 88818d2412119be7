"""Frequent kernel sequences: what operators launch again and again."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from tightship_analyzers.metrics.device_events import NO_DEVICE_EVENTS, NO_LAUNCHES
from tightship_analyzers.metrics.launched_work import LaunchedWork
from tightship_analyzers.trace.columns import Int64s
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.not_applicable import NotApplicable

MIN_LENGTH = 3
"""Shorter sequences are no pattern. Source: HolisticTraceAnalysis, `min_pattern_len`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSequence:
    """One operator and the device events it launched, wherever that happened alike."""

    operator: str
    kernels: tuple[str, ...]
    """Names in order of start on the device."""
    count: int
    """How many calls of the operator launched exactly these."""
    device_ns: int
    """Durations of the events of all those calls."""
    host_ns: int
    """Durations of all those calls."""
    first_ns: int
    """Start of the first of those calls."""


def kernel_sequences(
    trace: Trace, *, operator: str = "", min_length: int = MIN_LENGTH
) -> tuple[KernelSequence, ...] | NotApplicable:
    """Sequences by how often they come, the most frequent first, then the one with the most device time.

    They are taken from operators whose name contains `operator` (any, when empty), and of those that enclose one
    another from the outermost, so that nothing counts twice. What other threads launch for an operator (its backward)
    is not its own.
    """
    if not len(trace.device_events):
        return NO_DEVICE_EVENTS
    if not (trace.device_events.launch >= 0).any():
        return NO_LAUNCHES
    ops = trace.host_ops.take(trace.names.mask(trace.host_ops.name, lambda text: operator in text))
    if not len(ops):
        return NotApplicable(
            f"needs operators whose name contains {operator!r}; the trace holds none"
            if operator
            else "needs operators; the trace holds none"
        )
    ops = ops.take(_outermost(ops.tid.astype(np.int64), ops.start_ns, ops.end_ns))
    work = LaunchedWork.of(trace)
    first, stop = work.under(ops.tid, ops.start_ns, ops.end_ns)
    device_ns = work.dur_before_ns[stop] - work.dur_before_ns[first]
    found: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    for row in np.flatnonzero(stop - first >= min_length).tolist():
        # Rows of device events are in order of start.
        events = np.sort(work.event[first[row] : stop[row]])
        found[int(ops.name[row]), trace.device_events.name[events].tobytes()].append(row)
    dtype = trace.device_events.name.dtype
    sequences = [
        KernelSequence(
            operator=trace.names[number],
            kernels=tuple(trace.names[name] for name in np.frombuffer(kernels, dtype=dtype).tolist()),
            count=len(rows),
            device_ns=int(device_ns[rows].sum()),
            host_ns=int(ops.dur_ns[rows].sum()),
            first_ns=int(ops.start_ns[rows[0]]),
        )
        for (number, kernels), rows in found.items()
    ]
    return tuple(sorted(sequences, key=lambda row: (-row.count, -row.device_ns, row.operator, row.kernels)))


def _outermost(tid: Int64s, start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """Rows that no other row of their thread encloses, ascending."""
    kept = []
    for thread in np.unique(tid).tolist():
        rows = np.flatnonzero(tid == thread)
        reach = np.maximum.accumulate(end_ns[rows])[:-1]
        kept.append(rows[np.append(True, (start_ns[rows][1:] >= reach) & (end_ns[rows][1:] > reach))])
    return np.sort(np.concatenate(kept))
