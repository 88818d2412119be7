"""The place of any moment of a host thread: own function, operator, module path."""

from __future__ import annotations

from typing import Any

import numpy as np

from tightship_analyzers.facts.idle.place_index import MODULE, NONE, Labels, ModulePaths
from tightship_analyzers.facts.program.frames import is_user_frame
from tightship_analyzers.facts.program.work_threads import AUTOGRAD_NODE
from tightship_analyzers.trace.columns import Bools, Int32s, Int64s
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.joins import order_of, sorted_distinct
from tightship_analyzers.trace.model import HostOps, Names, Trace
from tightship_analyzers.trace.open_rows import OpenRows
from tightship_analyzers.trace.step_marks import PROFILER


class Lane:
    """Nested ranges of one thread, each with a number that says what it is."""

    def __init__(self, start_ns: Int64s, end_ns: Int64s, number: Int32s | Int64s) -> None:
        self.open_rows = OpenRows.of(start_ns, end_ns)
        self._number = np.append(number, number.dtype.type(-1))

    def at(self, moments_ns: Int64s) -> Any:
        """(moments,) the number of the innermost range; -1: none."""
        return self._number[self.open_rows.at(moments_ns)]


class Frames:
    """Own functions and modules of one thread."""

    def __init__(self, trace: Trace, tid: int, paths: ModulePaths) -> None:
        names, frames = trace.names, trace.frames
        own = frames.tid == tid
        self.user = _lane(frames, own & names.mask(frames.name, is_user_frame))
        modules = np.flatnonzero(own & names.mask(frames.name, lambda name: name.startswith(MODULE)))
        start, end = frames.start_ns[modules], frames.end_ns[modules]
        self.module = Lane(start, end, paths.of(frames.name[modules], OpenRows.of(start, end)))

    def at(self, moments_ns: Int64s) -> Labels:
        """Where the thread was at each moment, except for the operator."""
        return Labels(self.user.at(moments_ns), np.full(len(moments_ns), NONE), self.module.at(moments_ns))


class ThreadPlaces:
    """The places of one thread, as far as they were asked for in advance."""

    def __init__(self, trace: Trace, tid: int, needed: Intervals, frames: Frames) -> None:
        """`needed`: when it will be asked for operators; what lies elsewhere is not looked at."""
        names, ops, marks = trace.names, trace.host_ops, trace.annotations
        self.frames = frames
        near_op, near_mark = _near(ops, tid, needed), _near(marks, tid, needed)
        named = ~names.mask(marks.name[near_mark], lambda name: name.startswith(PROFILER))
        start = np.append(ops.start_ns[near_op], marks.start_ns[near_mark][named])
        end = np.append(ops.end_ns[near_op], marks.end_ns[near_mark][named])
        name = np.append(ops.name[near_op], marks.name[near_mark][named])
        order = order_of(start, end - start)
        self._operators = Lane(start[order], end[order], name[order])
        self._calls = _lane(trace.launches, _near(trace.launches, tid, needed))
        is_node = names.mask(ops.name[near_op], lambda name: name.startswith(AUTOGRAD_NODE))
        nodes = near_op[is_node & (ops.seq[near_op] >= 0)]
        self._nodes = Lane(ops.start_ns[nodes], ops.end_ns[nodes], ops.seq[nodes])

    def at(self, moments_ns: Int64s) -> Labels:
        """Where the thread was at each moment."""
        labels, operator = self.frames.at(moments_ns), self._operators.at(moments_ns)
        return Labels(labels.frame, np.where(operator < 0, self._calls.at(moments_ns), operator), labels.module)

    def node_at(self, moments_ns: Int64s) -> Int64s:
        """Sequence number of the autograd node that the thread evaluated at each moment; -1: none."""
        found: Int64s = self._nodes.at(moments_ns)
        return found

    def changes_in(self, time: Intervals) -> Int64s:
        """The moments within `time` at which the place changes, ascending."""
        lanes = (self.frames.user, self.frames.module, self._operators, self._calls)
        changes = np.concatenate([lane.open_rows.at_ns for lane in lanes])
        return sorted_distinct(changes[time.contains(changes)])


class Forward:
    """When the operator of the forward pass ran that an autograd node belongs to: they share a sequence number."""

    def __init__(self, ops: HostOps, names: Names, main_tid: int) -> None:
        is_node = names.mask(ops.name, lambda name: name.startswith(AUTOGRAD_NODE))
        rows = np.flatnonzero((ops.seq >= 0) & (ops.tid == main_tid) & ~is_node)
        self._seq, first = np.unique(ops.seq[rows], return_index=True)
        self._start_ns = ops.start_ns[rows[first]]

    def start_ns(self, seq: Int64s) -> Int64s:
        """(nodes,) start of the first operator with this number; -1: not in the trace."""
        if not len(self._seq):
            return np.full(len(seq), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self._seq, seq), len(self._seq) - 1)
        return np.where(self._seq[at] == seq, self._start_ns[at], -1)


def _near(table: Any, tid: int, needed: Intervals) -> Int64s:
    """Rows of a thread that share time with `needed`."""
    if not len(needed):
        return np.array([], dtype=np.int64)
    own = (table.tid == tid) & (table.end_ns > needed.start_ns[0]) & (table.start_ns < needed.end_ns[-1])
    rows = np.flatnonzero(own)
    return rows[needed.meets(table.start_ns[rows], table.end_ns[rows])]


def _lane(table: Any, rows: Int64s | Bools) -> Lane:
    return Lane(table.start_ns[rows], table.end_ns[rows], table.name[rows])
