"""The critical path of each step: the chain of causes behind its last moment, without a gap.

It starts where the step was done (on the host, or with the last device event that the step launched) and goes back, at
each node along the edge that held it up. Of equally good edges the first kind in `Edge` is taken, so the path is the
same on every machine. What lies within the step's bounds counts, so its parts sum to the measured step exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightship_analyzers.graph.model import Edge, Graph, Node
from tightship_analyzers.graph.simulate import measured
from tightship_analyzers.trace.columns import HostOps, Int8s, Int32s, Int64s
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.joins import numbers_in
from tightship_analyzers.trace.model import Trace


class Part(StrEnum):
    """What the time on a critical path was."""

    HOST = "host"
    """The host's own work: operators, Python, runtime calls."""
    KERNEL = "kernel"
    COPY = "copy"
    """Copies and sets."""
    COLLECTIVE = "collective"
    """Its own transfer and its wait for other ranks, which one rank's trace does not tell apart."""
    LAUNCH = "launch_latency"
    """From a call to the start of what it launched."""
    GAP = "stream_gap"
    """Between two device events that had nothing to wait for but each other."""
    SYNC = "sync"
    """From the end of what the host waited for until it went on."""
    UNEXPLAINED = "unexplained"
    """Waiting for which the trace shows no cause."""


PARTS = tuple(Part)
"""Numbers in `CriticalPath.part` are places in this."""
_WORK = np.array([PARTS.index(part) for part in (Part.KERNEL, Part.COPY, Part.COPY, Part.COLLECTIVE)], dtype=np.int8)
"""By `EventKind`."""
_DELAYS = {
    Edge.HOST: Part.HOST,
    Edge.HAND_OVER: Part.HOST,
    Edge.SYNC: Part.SYNC,
    Edge.QUEUE: Part.SYNC,
    Edge.STREAM: Part.GAP,
    Edge.WAIT: Part.GAP,
    Edge.INFERRED: Part.GAP,
    Edge.LAUNCH: Part.LAUNCH,
    Edge.START: Part.UNEXPLAINED,
    Edge.ANCHOR: Part.UNEXPLAINED,
}
_DELAY = np.array([PARTS.index(_DELAYS[kind]) for kind in Edge], dtype=np.int8)
"""By `Edge`."""


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPath:
    """Of one step: stretches of time that fill it, in order."""

    start_ns: Int64s
    end_ns: Int64s
    """(stretches,) absolute"""
    part: Int8s
    """(stretches,) what each was: a place in `PARTS`."""
    event: Int64s
    """(stretches,) row in `Trace.device_events` of the work; -1 where it is none."""
    tid: Int64s
    """(stretches,) thread of the host's own work; -1 elsewhere."""
    ops: Mapping[int, HostOps]
    """Thread → its outermost operators, all of them; shared by the paths of a graph."""

    @property
    def dur_ns(self) -> Int64s:
        """(stretches,)"""
        return self.end_ns - self.start_ns

    @property
    def by_part_ns(self) -> dict[Part, int]:
        """The largest first, none of 0; sums to the step."""
        sums = np.zeros(len(PARTS), dtype=np.int64)
        np.add.at(sums, self.part, self.dur_ns)
        return {PARTS[number]: int(sums[number]) for number in np.argsort(-sums, kind="stable") if sums[number]}

    def device_events(self, trace: Trace) -> dict[str, int]:
        """Name → ns on the path, of kernels, copies and collectives; the largest first."""
        work = self.event >= 0
        return _by_name(trace, trace.device_events.name[self.event[work]], self.dur_ns[work])

    def operators(self, trace: Trace) -> dict[str, int]:
        """Name → ns of the path's host time within it, of outermost operators; the largest first. What is missing to
        the part HOST passed outside of operators."""
        names, lasts = [np.empty(0, dtype=np.int32)], [np.empty(0, dtype=np.int64)]
        for tid in numbers_in(self.tid[self.tid >= 0]).tolist():
            ops = self.ops[tid]
            # Outermost operators do not overlap, so their ends are in order too.
            near = slice(
                int(np.searchsorted(ops.end_ns, self.start_ns[0], side="right")),
                int(np.searchsorted(ops.start_ns, self.end_ns[-1], side="left")),
            )
            own = Intervals.of(self.start_ns[self.tid == tid], self.end_ns[self.tid == tid])
            names.append(ops.name[near])
            lasts.append(own.overlap_ns(ops.start_ns[near], ops.end_ns[near]))
        return _by_name(trace, np.concatenate(names), np.concatenate(lasts))


def critical_paths(trace: Trace, graph: Graph) -> list[CriticalPath]:
    """The path of every step of the graph."""
    why = _held_by(graph)
    cause = np.where(why >= 0, graph.src[why], -1).tolist() if len(graph.src) else [-1] * len(graph)
    times, finished = graph.time_ns.tolist(), measured(graph).finished_ns.tolist()
    ops = {tid: _outermost(trace, tid) for tid in numbers_in(graph.tid[graph.tid >= 0]).tolist()}
    paths = []
    for step, (first, last) in enumerate(zip(graph.bound[:-1].tolist(), graph.bound[1:].tolist(), strict=True)):
        late = finished[step + 1] > times[last]
        node = _last_event(graph, int(graph.due[step + 1])) if late else last
        nodes = [node]
        while times[node] > times[first] and cause[node] >= 0:
            node = cause[node]
            nodes.append(node)
        edges, tail = why[nodes[-2::-1]], nodes[0] if late else None
        paths.append(CriticalPath(*_stretches(trace, graph, edges, tail, times[first], times[last]), ops))
    return paths


def _held_by(graph: Graph) -> Int64s:
    """(nodes,) the edge that held each node up; -1 for the root."""
    delay = np.where(graph.of_end, graph.dur_ns[graph.src] + graph.lag_ns, graph.lag_ns) + graph.excess_ns
    ready = graph.time_ns[graph.src] + np.maximum(delay, 0)
    # An anchor only says when it was, and so is the last resort.
    ready[(graph.edge == Edge.ANCHOR) | (graph.edge == Edge.START)] = -1
    order = np.lexsort((np.arange(len(ready)), graph.edge, -ready, graph.dst))
    first = np.flatnonzero(np.append(True, graph.dst[order][1:] != graph.dst[order][:-1])) if len(order) else order
    held = np.full(len(graph), -1, dtype=np.int64)
    held[graph.dst[order[first]]] = order[first]
    return held


def _last_event(graph: Graph, due: int) -> int:
    """Of the events launched before a bound the one that ended last; of several the first."""
    nodes = graph.by_launch[:due]
    ends = graph.time_ns[nodes] + graph.dur_ns[nodes]
    return int(nodes[ends == ends.max()].min())


def _stretches(
    trace: Trace, graph: Graph, edges: Int64s, tail: int | None, begin_ns: int, end_ns: int
) -> tuple[Int64s, Int64s, Int8s, Int64s, Int64s]:
    """Start, end, part, event and thread of what lies within the bounds of edges in order of time, and of the event at
    the end of the path, if one is."""
    src, dst = graph.src[edges], graph.dst[edges]
    since, until = graph.time_ns[src], graph.time_ns[dst]
    # Each edge is the work of its source, its own delay, and what nobody can explain.
    worked = np.where(graph.of_end[edges], since + np.minimum(graph.dur_ns[src], until - since), since)
    known = np.minimum(until, worked + np.maximum(graph.lag_ns[edges], 0))
    none = np.full(len(edges), -1, dtype=np.int64)
    delay = _DELAY[graph.edge[edges]]
    lost = np.full(len(edges), PARTS.index(Part.UNEXPLAINED), dtype=np.int8)
    on_host = np.where(delay == PARTS.index(Part.HOST), graph.tid[dst], -1)
    columns = [
        _mixed(since, worked, known),
        _mixed(worked, known, until),
        _mixed(_work(trace, graph, src), delay, lost),
        _mixed(np.where(graph.of_end[edges], graph.row[src], -1), none, none),
        _mixed(none, on_host, none),
    ]
    if tail is not None:
        last = np.array([tail])
        start = graph.time_ns[last]
        ends = [start, start + graph.dur_ns[last], _work(trace, graph, last), graph.row[last], np.array([-1])]
        columns = [np.append(column, end) for column, end in zip(columns, ends, strict=True)]
    columns[0], columns[1] = np.maximum(columns[0], begin_ns), np.minimum(columns[1], end_ns)
    start, end, part, event, tid = (column[columns[1] > columns[0]] for column in columns)
    return graph.base_ns + start, graph.base_ns + end, part.astype(np.int8), event, tid


def _mixed(*columns: NDArray[Any]) -> NDArray[Any]:
    """The first of each, the second of each, …"""
    return np.stack(columns, axis=1).ravel()


def _work(trace: Trace, graph: Graph, nodes: NDArray[Any]) -> Int8s:
    """What the device did at nodes; of host nodes anything, for they have no length."""
    if not len(trace.device_events):
        return np.zeros(len(nodes), dtype=np.int8)
    rows = np.where(graph.node[nodes] == Node.DEVICE, graph.row[nodes], 0)
    return np.asarray(_WORK[trace.device_events.kind[rows]], dtype=np.int8)


def _by_name(trace: Trace, name: Int32s, ns: Int64s) -> dict[str, int]:
    sums = np.zeros(len(trace.names), dtype=np.int64)
    np.add.at(sums, name, ns)
    found = np.flatnonzero(sums)
    texts = [trace.names[number] for number in found.tolist()]
    return dict(sorted(zip(texts, sums[found].tolist(), strict=True), key=lambda item: (-item[1], item[0])))


def _outermost(trace: Trace, tid: int) -> HostOps:
    ops = trace.host_ops.take(trace.host_ops.tid == tid)
    if not len(ops):
        return ops
    latest = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(ops.end_ns)[:-1])
    return ops.take(ops.end_ns > latest)
