"""The host's side of the graph: points in the order of each thread, and the edges between neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightship_analyzers.graph.model import Edge, Node
from tightship_analyzers.graph.streams import Streams
from tightship_analyzers.graph.threads import HandOvers
from tightship_analyzers.graph.waits import HostWaits
from tightship_analyzers.trace.columns import Int8s, Int32s, Int64s
from tightship_analyzers.trace.joins import numbers_in
from tightship_analyzers.trace.model import Trace

_BEFORE, _AT, _AFTER = -1, 0, 1
"""Of points of a thread at one moment: what ends there comes before what begins there."""


@dataclass(slots=True)
class HostNodes:
    """Points of all threads, by thread and time. Numbers of points are places in these columns."""

    tid: Int32s
    time_ns: Int64s
    node: Int8s
    row: Int64s
    own_ns: Int64s
    """(points,) of a RETURN that waited: what the call takes by itself; -1 elsewhere."""
    call_of: Int64s
    """(launches,) the point at which a call begins; -1 where it is none."""
    return_of: Int64s
    """(launches,) the point at which it returns; -1 where it is none."""
    bound: Int64s
    """(bounds,)"""
    handed: tuple[Int64s, Int64s, Int64s, Int64s]
    """(hand-overs,) each: points at which the caller left, the worker began and was done, and the caller resumed."""

    def edges(self) -> tuple[Int64s, Int64s, Int8s, Int64s]:
        """(src, dst, edge, lag) of the order on each thread and of the hand-overs."""
        left, begun, done, resumed = self.handed
        dst = np.arange(1, len(self.tid))
        dst = dst[self.tid[1:] == self.tid[:-1]]
        # Who waits for another thread does nothing itself meanwhile.
        waits = np.zeros(len(self.tid), dtype=np.bool_)
        waits[begun] = True
        waits[resumed] = True
        dst = dst[~waits[dst]]
        src = dst - 1
        lag = self.time_ns[dst] - self.time_ns[src]
        blocked = self.own_ns[dst] >= 0
        lag[blocked] = np.minimum(lag[blocked], self.own_ns[dst[blocked]])
        kinds = np.full(len(dst), Edge.HOST, dtype=np.int8)
        crossed = np.full(2 * len(left), Edge.HAND_OVER, dtype=np.int8)
        src, dst = np.concatenate((src, left, done)), np.concatenate((dst, begun, resumed))
        crossing = np.concatenate(
            (self.time_ns[begun] - self.time_ns[left], self.time_ns[resumed] - self.time_ns[done])
        )
        return src, dst, np.concatenate((kinds, crossed)), np.concatenate((lag, crossing))

    @classmethod
    def of(
        cls, trace: Trace, streams: Streams, waits: HostWaits, handed: HandOvers, bounds_ns: Int64s, tid: int
    ) -> HostNodes:
        """Collect and sort the points."""
        launches, events = trace.launches, trace.device_events
        plain = numbers_in(events.launch[streams.linked])
        plain = plain[~np.isin(plain, waits.call)]
        waited = np.zeros(len(waits.call), dtype=np.bool_)
        waited[waits.place] = True
        count, turns = len(bounds_ns), len(handed.left_ns)
        none = np.full(turns, -1, dtype=np.int64)
        # One entry per sort of point: thread, time, sort, row, order among points of the same moment, own time.
        parts = [
            _points(launches.tid[plain], launches.start_ns[plain], Node.LAUNCH, plain, _AFTER),
            _points(launches.tid[waits.call], launches.start_ns[waits.call], Node.BLOCK, waits.call, _AFTER),
            _points(
                launches.tid[waits.call],
                launches.end_ns[waits.call],
                Node.RETURN,
                waits.call,
                # A call of no length returns after it began.
                np.where(launches.dur_ns[waits.call] > 0, _BEFORE, _AFTER + 1),
                np.where(waited, waits.own_ns, -1),
            ),
            _points(np.full(count, tid), bounds_ns, Node.BOUND, np.arange(count), _AT),
            _points(handed.caller, handed.left_ns, Node.HAND_OVER, none, _BEFORE),
            _points(handed.worker, handed.begun_ns, Node.HAND_OVER, none, _AT),
            _points(handed.worker, handed.done_ns, Node.HAND_OVER, none, _BEFORE),
            _points(handed.caller, handed.resumed_ns, Node.HAND_OVER, none, _AT),
        ]
        column = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
        place = np.arange(len(column[0]))
        order = np.lexsort((place, column[4], column[1], column[0]))
        where = np.empty_like(order)
        where[order] = place
        starts = np.cumsum([0, *(len(part[0]) for part in parts)])
        piece = [where[starts[number] : starts[number + 1]] for number in range(len(parts))]
        call_of, return_of = np.full(len(launches), -1), np.full(len(launches), -1)
        call_of[plain], call_of[waits.call], return_of[waits.call] = piece[0], piece[1], piece[2]
        return cls(
            tid=column[0][order].astype(np.int32),
            time_ns=column[1][order],
            node=column[2][order].astype(np.int8),
            row=column[3][order],
            own_ns=column[5][order],
            call_of=call_of,
            return_of=return_of,
            bound=piece[3],
            handed=(piece[4], piece[5], piece[6], piece[7]),
        )


def _points(
    tid: Int32s, time_ns: Int64s, node: Node, row: Int64s, order: Int64s | int, own_ns: Int64s | int = -1
) -> tuple[np.ndarray, ...]:
    count = len(time_ns)
    return (
        np.asarray(tid, dtype=np.int64),
        time_ns,
        np.full(count, node),
        row,
        np.broadcast_to(order, count),
        np.broadcast_to(own_ns, count),
    )
