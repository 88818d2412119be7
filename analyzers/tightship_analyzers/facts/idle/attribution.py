"""Shares idle time out: every nanosecond to one cause and one place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from tightship_analyzers.facts.activity.cause import Cause
from tightship_analyzers.facts.activity.host_activity import HostThread
from tightship_analyzers.facts.activity.profiler_pauses import ProfilerPauses
from tightship_analyzers.facts.idle.attributed import Attributed, Piece, joined
from tightship_analyzers.facts.idle.found import NO_THREAD, Found
from tightship_analyzers.facts.idle.place_index import Labels, PlaceIndex
from tightship_analyzers.facts.idle.stalls import Stalls
from tightship_analyzers.facts.idle.thread_places import Forward, Frames, ThreadPlaces
from tightship_analyzers.facts.idle.waits import NEVER, Waits
from tightship_analyzers.trace.columns import Int32s, Int64s
from tightship_analyzers.trace.intervals import Intervals, union_of
from tightship_analyzers.trace.joins import sorted_distinct
from tightship_analyzers.trace.model import Trace

BLOCK = 2**15
"""Gaps that are looked at together: enough to be fast, few enough to need little memory."""
MAX_THREADS = 64
"""Threads whose own doing is looked at, those with most idle time first; for more, the training thread stands in."""


class Attribution:
    """Attributes gaps of one trace; what it learns about host threads serves for all gaps that it is given."""

    def __init__(
        self, trace: Trace, *, main_tid: int, main: HostThread, work_tids: Int32s, profiler: ProfilerPauses
    ) -> None:
        self._trace = trace
        self._profiler = profiler
        self._main_tid = main_tid
        self._stalls = Stalls.of(trace, np.isin(trace.launches.tid, work_tids)) if trace.device_kind == "gpu" else None
        self._place_index = PlaceIndex(trace.names)
        self._forward = Forward(trace.host_ops, trace.names, main_tid)
        self._threads = {main_tid: main}
        self._frames: dict[int, Frames] = {}

    def of(
        self, waits: Waits, *, queued: Cause, queued_row: Int64s, edges: Intervals, held_ns: int = NEVER
    ) -> Attributed:
        """The cause and place of every nanosecond of `waits`.

        :param queued: cause of the parts that are the device's.
        :param held_ns: parts of the device's that are longer are UNRECORDED.
        :param queued_row: for each gap the row of the device event whose launch is the place of its device part; -1:
            unknown.
        :param edges: time before and after all work of the device.
        """
        pieces: list[Piece] = []
        profiling = union_of(
            self._profiler.caused(tid, waits.take(waits.tid == tid).host) for tid in self._profiler.by_thread
        )
        for first in range(0, len(waits.start_ns), BLOCK):
            block = np.arange(first, min(first + BLOCK, len(waits.start_ns)))
            some = waits.take(block)
            parts = self._found(some, queued, queued_row[block], edges, held_ns, profiling)
            found = [part for part in parts if len(part.start_ns)]
            pieces.extend(self._placed(found, some))
        return joined(pieces, self._place_index.places)

    def _found(
        self, waits: Waits, queued: Cause, queued_row: Int64s, edges: Intervals, held_ns: int, profiling: Intervals
    ) -> Iterator[Found]:
        yield self._queued(waits, queued, queued_row, held_ns)
        stalls = self._stalls_of(self._stalls, waits) if self._stalls else None
        for tid, time, busy in self._by_thread(waits):
            yield Found.following(time & profiling, Cause.PROFILING, tid)
            yield from self._host(time - profiling, tid, stalls, edges, busy)

    @staticmethod
    def _stalls_of(stalls: Stalls, waits: Waits) -> Found:
        """Those that keep work waiting; see [Note: after the last work] in device_busy.py."""
        last = waits.event < 0
        found = stalls.found(Intervals(waits.start_ns[~last], waits.end_ns[~last]))
        nothing_waits = Intervals.of(waits.start_ns[last], waits.end_ns[last])
        return found.cut_to(Intervals(found.start_ns, found.end_ns) - nothing_waits)

    def _thread(self, tid: int) -> HostThread:
        if tid not in self._threads:
            self._threads[tid] = HostThread.of(self._trace, tid)
        return self._threads[tid]

    # -- causes ------------------------------------------------------------------------------------------------

    def _queued(self, waits: Waits, cause: Cause, row: Int64s, held_ns: int) -> Found:
        launches, events = self._trace.launches, self._trace.device_events
        launch = np.append(events.launch, -1)[row]
        known = launch >= 0
        found = Found(
            waits.host_until_ns,
            waits.end_ns,
            np.where(waits.end_ns - waits.host_until_ns > held_ns, Cause.UNRECORDED, cause).astype(np.int8),
            np.where(known, np.append(launches.tid, 0)[launch], NO_THREAD).astype(np.int32),
            np.append(launches.start_ns, 0)[launch],
            np.append(events.name, np.int32(-1))[row],
            is_constant=True,
        )
        return found.take(found.end_ns > found.start_ns)

    def _by_thread(self, waits: Waits) -> Iterator[tuple[int, Intervals, Intervals]]:
        """(thread, time, when it was busy): who was waited for, and when. That is the thread that launched next; while
        that one did nothing, the training thread."""
        host_ns = waits.host_until_ns - waits.start_ns
        tids, inverse = np.unique(waits.tid, return_inverse=True)
        weight = np.bincount(inverse, weights=host_ns, minlength=len(tids))
        chosen = tids[np.argsort(-weight, kind="stable")[:MAX_THREADS]]
        left, pauses = waits.host, [self._thread(self._main_tid).busy]
        for tid in chosen[chosen != self._main_tid].tolist():
            own, thread = waits.take(waits.tid == tid).host, self._thread(tid)
            pauses.append(own & thread.busy)
            own = own & thread.seen
            left = left - own
            yield tid, own, own
        yield self._main_tid, left, union_of(pauses)

    def _host(
        self, time: Intervals, tid: int, stalls: Found | None, edges: Intervals, busy: Intervals
    ) -> Iterator[Found]:
        left = time
        for cause, spans in self._thread(tid).causes:
            taken = left & spans
            left = left - taken
            yield Found.following(taken, cause, tid)
        if stalls is not None:
            taken = left & Intervals(stalls.start_ns, stalls.end_ns)
            left = left - taken
            yield stalls.cut_to(taken)
        for cause, spans in ((Cause.WINDOW_EDGE, edges), (Cause.HOST_DISPATCH, busy)):
            yield Found.following(left & spans, cause, tid)
            left = left - spans
        yield Found.following(left, Cause.UNEXPLAINED, tid)

    # -- places ------------------------------------------------------------------------------------------------

    def _placed(self, found: list[Found], waits: Waits) -> Iterator[Piece]:
        """Cuts what follows a thread where its place changes, and gives each piece its place."""
        tids = _longest(found) | {self._main_tid}
        launching = waits.take((waits.launched_ns >= 0) & (waits.host_until_ns > waits.start_ns))
        threads = {
            tid: ThreadPlaces(self._trace, tid, _needed(found, launching, tid), self._frames_of(tid))
            for tid in sorted(tids)
        }
        for whole in found:
            part = whole if whole.is_constant else _cut(whole, threads)
            labels = self._labels(part, threads)
            yield Piece(
                part.start_ns, part.end_ns, part.cause, self._place_index.numbers(labels, _before(part, waits, threads))
            )

    def _frames_of(self, tid: int) -> Frames:
        if tid not in self._frames:
            self._frames[tid] = Frames(self._trace, tid, self._place_index.paths)
        return self._frames[tid]

    def _labels(self, part: Found, threads: dict[int, ThreadPlaces]) -> Labels:
        """Of the thread itself; in the backward pass of the operator whose gradient it is; else of the training
        thread at that time."""
        main = self._frames_of(self._main_tid)
        labels = Labels.unknown(len(part.start_ns))
        for tid, places in threads.items():
            rows = np.flatnonzero(part.tid == tid)
            if not len(rows):
                continue
            moments = part.moment_ns[rows]
            own = places.at(moments)
            node = places.node_at(moments)
            if (node >= 0).any():
                own = own.or_else(main.at(self._forward.start_ns(node)))
            if tid != self._main_tid:
                own = own.or_else(main.at(moments))
            labels.put(rows, own)
        unknown = part.tid == NO_THREAD
        labels.operator[unknown] = part.name[unknown]
        return labels


def _longest(found: Iterable[Found]) -> set[int]:
    """The threads whose places are looked up: those that time follows, and of the others those with most time."""
    given = list(found)
    followed = {int(part.tid[0]) for part in given if not part.is_constant}
    tid = np.concatenate([part.tid for part in given] or [np.array([], dtype=np.int32)])
    ns = np.concatenate([part.end_ns - part.start_ns for part in given] or [np.array([], dtype=np.int64)])
    tids, inverse = np.unique(tid, return_inverse=True)
    weight = np.bincount(inverse, weights=ns, minlength=len(tids))
    weight[tids == NO_THREAD] = 0
    return followed.union(tids[np.argsort(-weight, kind="stable")[:MAX_THREADS]].tolist()) - {NO_THREAD}


def _needed(found: Iterable[Found], launching: Waits, tid: int) -> Intervals:
    """When the places of a thread are asked for."""
    parts = [
        Intervals.of(launching.launched_ns[mine], launching.launched_ns[mine] + 1) for mine in [launching.tid == tid]
    ]
    for part in found:
        mine = part.tid == tid
        ends = part.moment_ns[mine] + 1 if part.is_constant else part.end_ns[mine]
        parts.append(Intervals.of(part.moment_ns[mine], ends))
    return union_of(parts)


def _cut(part: Found, threads: dict[int, ThreadPlaces]) -> Found:
    """The same time of one thread in pieces that hold no change of place."""
    tid = int(part.tid[0])
    changes = threads[tid].changes_in(Intervals(part.start_ns, part.end_ns))
    start = sorted_distinct(np.append(part.start_ns, changes))
    row = np.searchsorted(part.start_ns, start, side="right") - 1
    end = np.minimum(part.end_ns[row], np.append(start[1:], part.end_ns[-1]))
    return Found(start, end, part.cause[row], part.tid[row], start, part.name[row], is_constant=False)


def _before(part: Found, waits: Waits, threads: dict[int, ThreadPlaces]) -> Int32s:
    """(pieces,) the operator that launched what ended the gap, where that is what was waited for; -1: unknown."""
    names = np.full(len(part.start_ns), -1, dtype=np.int32)
    if part.is_constant or part.cause[0] < Cause.WINDOW_EDGE:
        return names
    gap = np.searchsorted(waits.start_ns, part.start_ns, side="right") - 1
    tid, moment = waits.tid[gap], waits.launched_ns[gap]
    for thread, places in threads.items():
        rows = np.flatnonzero((tid == thread) & (moment >= 0))
        names[rows] = places.at(moment[rows]).operator
    return names
