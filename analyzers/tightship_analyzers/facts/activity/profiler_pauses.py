"""Host time that recording Python stacks takes by itself, measured in the trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import numpy as np

from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.graph.edits import Float64s
from tightship_analyzers.trace.columns import HostOps, Int64s, Launches
from tightship_analyzers.trace.intervals import Intervals, union_of
from tightship_analyzers.trace.model import Frames, Trace

MIN_CALLS = 200
"""Direct calls of a frame that show whether the pauses between them grow or scatter."""
PARTS = 10
"""Equal parts of the calls, by position, whose median pauses are compared."""
MIN_RANK_CORRELATION = 0.9
"""Between position and median pause (Spearman's)."""
MIN_GROWTH = 3.0
"""Median pause of the last part against that of the first. Source: in the reference traces frames with as many calls
have 0.8 to 1.3, in loops as in generated code; those that the tracer slows down 11."""
MIN_PAUSES_NS = 1_000_000
"""Pauses of a frame that are worth a look."""


class SlowedFrame(NamedTuple):
    """One call of a function that the tracer slowed down."""

    name: int
    """Number of the frame's name."""
    tid: int
    start_ns: int
    end_ns: int
    calls: int
    """Direct calls."""
    first_ns: int
    last_ns: int
    """Median pause between calls in the first and in the last part."""
    added: Intervals
    """What the pauses take beyond the usual one."""


@dataclass(frozen=True, slots=True, eq=False)
class ProfilerPauses:
    """Frames in which recording takes ever longer from call to call.

    [Note: the tracer's own time] In long generated functions (of a compiler, with thousands of locals and calls in one
    frame) the profiler's Python tracer takes longer for each call the further down it stands: from 5 to 84 µs in each
    of four calls of one function (MI300X), whatever is called. A program does not grow like that from statement to
    statement: the pauses between the calls of a loop stay as they are. There, what a pause takes beyond the usual one
    between two calls of the thread is the recording's, as far as those around it take as long.
    """

    needs: ClassVar[Needs] = ()

    slowed: tuple[SlowedFrame, ...]

    @property
    def by_thread(self) -> dict[int, Intervals]:
        """Thread → host time that goes where no stacks are recorded."""
        return {
            tid: union_of(frame.added for frame in self.slowed if frame.tid == tid)
            for tid in sorted({frame.tid for frame in self.slowed})
        }

    def caused(self, tid: int, gaps: Intervals) -> Intervals:
        """What of the gaps in which a device waited for this thread would go without the tracer.

        Without it the host would have come to each launch earlier by all that the tracer had added in the frame until
        then; what gaps before have taken of that is gone.
        """
        return union_of(_caught_up(frame, gaps) for frame in self.slowed if frame.tid == tid)

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """From the frames' callers; without stacks there are none."""
        return cls(tuple(_slowed(facts.trace)))


def _caught_up(frame: SlowedFrame, gaps: Intervals) -> Intervals:
    inside = gaps.clip(frame.start_ns, frame.end_ns)
    lost_ns = np.cumsum(inside.end_ns - inside.start_ns)
    # Credit: what was added so far, less what gaps have used of it; it is never negative.
    credit_ns = frame.added.covered_before(inside.end_ns)
    gone_ns = lost_ns + np.minimum(np.minimum.accumulate(credit_ns - lost_ns), 0)
    return Intervals.of(inside.end_ns - np.diff(gone_ns, prepend=0), inside.end_ns)


def _slowed(trace: Trace) -> Iterator[SlowedFrame]:
    frames = trace.frames
    siblings = _Siblings.of(frames)
    for rows in siblings.many():
        tid = int(frames.tid[rows[0]])
        begins_ns, ends_ns = frames.start_ns[rows[1:]], np.maximum.accumulate(frames.end_ns[rows[:-1]])
        pause_ns = np.maximum(begins_ns - ends_ns, 0)
        if int(pause_ns.sum()) < MIN_PAUSES_NS:
            continue
        busy = _between(trace, tid, begins_ns)
        pause_ns -= np.minimum(busy.overlap_ns(ends_ns, np.maximum(begins_ns, ends_ns)), pause_ns)
        medians = np.array([np.median(part) for part in np.array_split(pause_ns, PARTS)])
        if not _grows(medians):
            continue
        at = (np.arange(PARTS) + 0.5) * len(pause_ns) / PARTS
        common_ns = np.rint(np.interp(np.arange(len(pause_ns)), at, medians)).astype(np.int64)
        usual_ns = min(siblings.usual_pause_ns(frames, rows), int(medians[0]))
        added_ns = np.maximum(np.minimum(pause_ns, common_ns) - usual_ns, 0)
        caller = np.flatnonzero(frames.python_id == frames.parent_id[rows[0]])
        yield SlowedFrame(
            name=int(frames.name[caller[0]]) if len(caller) else -1,
            tid=tid,
            start_ns=int(frames.start_ns[rows[0]]),
            end_ns=int(frames.end_ns[rows].max()),
            calls=len(rows),
            first_ns=int(medians[0]),
            last_ns=int(medians[-1]),
            added=Intervals.of(begins_ns - added_ns, begins_ns) - busy,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Siblings:
    """Calls by the frame that makes them."""

    rows: Int64s
    """Rows of the frames, by caller and start."""
    first: Int64s
    """(callers,) where in `rows` the calls of each begin."""
    count: Int64s
    """(callers,)"""

    @classmethod
    def of(cls, frames: Frames) -> Self:
        """Those whose caller is known."""
        known = np.flatnonzero(frames.parent_id >= 0)
        rows = known[np.argsort(frames.parent_id[known], kind="stable")]
        first = np.flatnonzero(np.append(True, np.diff(frames.parent_id[rows]) != 0)[: len(rows)])
        return cls(rows, first, np.diff(np.append(first, len(rows))))

    def many(self) -> Iterator[Int64s]:
        """The calls of each frame that makes many."""
        large = self.count >= MIN_CALLS
        for begin, calls in zip(self.first[large].tolist(), self.count[large].tolist(), strict=True):
            yield self.rows[begin : begin + calls]

    def usual_pause_ns(self, frames: Frames, calls: Int64s) -> int:
        """Median pause between two calls of one frame of the same thread, those of this one left out."""
        before, after = self.rows[:-1], self.rows[1:]
        kept = (frames.parent_id[before] == frames.parent_id[after]) & (frames.tid[after] == frames.tid[calls[0]])
        kept &= frames.parent_id[after] != frames.parent_id[calls[0]]
        pause_ns = np.maximum(frames.start_ns[after[kept]] - frames.end_ns[before[kept]], 0)
        return int(np.median(pause_ns)) if len(pause_ns) else np.iinfo(np.int64).max


def _between(trace: Trace, tid: int, begins_ns: Int64s) -> Intervals:
    """Operators and calls of the runtime by the thread, each from begin to end between two calls of a frame."""

    def of(table: HostOps | Launches) -> Intervals:
        near = table.overlapping(int(begins_ns[0]), int(begins_ns[-1]))
        following = np.append(begins_ns, begins_ns[-1])[np.searchsorted(begins_ns, near.start_ns, side="right")]
        return Intervals.of_table(near.take((near.tid == tid) & (near.end_ns <= following)))

    return of(trace.host_ops) | of(trace.launches)


def _grows(medians: Float64s) -> bool:
    """From part to part, and by much."""
    if medians[-1] < MIN_GROWTH * max(medians[0], 1):
        return False
    rank = np.argsort(np.argsort(medians, kind="stable"))
    return bool(np.corrcoef(rank, np.arange(PARTS))[0, 1] >= MIN_RANK_CORRELATION)
