"""Running the graph again, unchanged or with edits.

One pass over the edges in order: a node happens as soon as the last of its edges lets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from tightship_analyzers.graph.edits import Edits, Float64s
from tightship_analyzers.graph.model import Edge, Graph, Node
from tightship_analyzers.trace.columns import Bools, Int32s, Int64s
from tightship_analyzers.trace.intervals import Intervals

EDGES_AT_ONCE = 65_536
"""Edges that are Python numbers at a time: a list of them takes ten times the memory of a column."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """When everything happened in one run of a graph, in ns after the start of the trace."""

    time_ns: Int64s
    """(nodes,)"""
    bounds_ns: Int64s
    """(bounds,) when the host passed each bound."""
    finished_ns: Int64s
    """(bounds,) when in addition all device events had ended that were launched before the bound. A host that runs
    ahead of its device passes the bound earlier than the step is done; over many steps the two agree."""

    @property
    def steps_ns(self) -> Int64s:
        """(steps,) on the host."""
        return np.diff(self.bounds_ns)

    @property
    def finished_steps_ns(self) -> Int64s:
        """(steps,) from one finish to the next."""
        return np.diff(self.finished_ns)


def measured(graph: Graph) -> Run:
    """What was recorded, in the form of a run."""
    return run_of(graph, graph.time_ns, graph.dur_ns)


def simulate(graph: Graph, edits: Edits | None = None) -> Run:
    """Run the graph.

    :param edits: what is different; None runs it unchanged.
    """
    dur = durations(graph, edits)
    delay = delays(graph, edits, dur)
    return run_of(graph, settled(len(graph), graph.src, graph.dst, delay), dur)


def settled(nodes: int, src: Int32s | Int64s, dst: Int32s | Int64s, delay: Int64s) -> Int64s:
    """(nodes,) when each happens, given the edges in an order in which causes come first; a negative delay is no edge.
    What no edge leads to happens at 0."""
    kept = np.flatnonzero(delay >= 0)
    least = [0] * nodes
    for first in range(0, len(kept), EDGES_AT_ONCE):
        part = kept[first : first + EDGES_AT_ONCE]
        for cause, effect, ns in zip(src[part].tolist(), dst[part].tolist(), delay[part].tolist(), strict=True):
            at = least[cause] + ns
            if at > least[effect]:
                least[effect] = at
    return np.array(least, dtype=np.int64)


def durations(graph: Graph, edits: Edits | None) -> Int64s:
    """(nodes,) of device events, with the edits."""
    if edits is None or not edits.device:
        return graph.dur_ns
    dur = graph.dur_ns.copy()
    share = _of_device(graph, edits.device)
    dur[graph.device] = np.round(dur[graph.device] * share).astype(np.int64)
    return dur


def _of_device(graph: Graph, shares: Mapping[int, float]) -> Float64s:
    """(device nodes,) the share that is left of each."""
    nodes = graph.device
    by_row = np.ones(int(graph.row[nodes].max(initial=-1)) + 1)
    for row, left in shares.items():
        if 0 <= row < len(by_row):
            by_row[row] = left
    return by_row[graph.row[nodes]]


def delays(graph: Graph, edits: Edits | None, dur: Int64s) -> Int64s:
    """(edges,) what each adds to the time of its source; negative: the edge is gone."""
    # An event that overlaps the one before it in its stream still does not start before that one.
    delay = np.where(graph.of_end, np.maximum(dur[graph.src] + graph.lag_ns, 0), graph.lag_ns)
    if edits is None:
        return np.maximum(delay, 0)
    delay = np.maximum(delay - _host_gone(graph, edits), 0)
    _drop_syncs(graph, edits, delay)
    _drop_launches(graph, edits, dur, delay)
    return delay


def _host_gone(graph: Graph, edits: Edits) -> Int64s:
    """(edges,) host time within each that goes."""
    gone = np.zeros(len(graph.src), dtype=np.int64)
    own = np.flatnonzero((graph.edge == Edge.HOST) | (graph.edge == Edge.HAND_OVER))
    src, dst = graph.src[own], graph.dst[own]
    for tid, spans in edits.host.items():
        mine = (graph.tid[src] == tid) | (graph.tid[dst] == tid)
        gone[own[mine]] += _overlap(graph, spans, src[mine], dst[mine])
    return gone


def _overlap(graph: Graph, spans: Intervals, src: Int64s, dst: Int64s) -> Int64s:
    return spans.overlap_ns(graph.base_ns + graph.time_ns[src], graph.base_ns + graph.time_ns[dst])


def _drop_syncs(graph: Graph, edits: Edits, delay: Int64s) -> None:
    """Calls that begin within take no time and wait for nothing."""
    for tid, spans in edits.syncs.items():
        blocks = np.flatnonzero((graph.node == Node.BLOCK) & (graph.tid == tid))
        calls = graph.row[blocks[spans.contains(graph.base_ns + graph.time_ns[blocks])]]
        returns = np.flatnonzero((graph.node == Node.RETURN) & np.isin(graph.row, calls))
        into = np.isin(graph.dst, returns)
        delay[into & ((graph.edge == Edge.SYNC) | (graph.edge == Edge.QUEUE))] = -1
        delay[into & (graph.edge == Edge.HOST)] = 0


def _drop_launches(graph: Graph, edits: Edits, dur: Int64s, delay: Int64s) -> None:
    """An event that is gone, or that starts with the one before it, needs no launch and leaves no gap. What it waited
    for holds the next one of its stream, and whoever waits for the stream; where it is gone, that leaves no gap either.
    One that is joined is not there before its thread has come to it: what that waited for, all later work waits for.
    """
    gone = {row for row, left in edits.device.items() if left == 0}
    if not gone | edits.joined:
        return
    without_launch = _into(graph, gone | edits.joined)
    delay[without_launch & ((graph.edge == Edge.LAUNCH) | (graph.edge == Edge.ANCHOR))] = -1
    delay[_into(graph, edits.joined - gone) & (graph.edge == Edge.LAUNCH)] = 0
    closed = without_launch & (graph.edge == Edge.STREAM)
    closed |= _into(graph, gone) & ((graph.edge == Edge.WAIT) | (graph.edge == Edge.INFERRED))
    delay[closed] = np.minimum(delay[closed], dur[graph.src[closed]])


def _into(graph: Graph, rows: AbstractSet[int]) -> Bools:
    """(edges,) which lead to one of these device events."""
    nodes = np.zeros(len(graph), dtype=np.bool_)
    device = graph.device
    nodes[device[np.isin(graph.row[device], list(rows))]] = True
    return nodes[graph.dst]


def run_of(graph: Graph, time_ns: Int64s, dur: Int64s) -> Run:
    """What given times mean for the steps."""
    bounds = time_ns[graph.bound]
    ended = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, (time_ns + dur)[graph.by_launch]))
    return Run(time_ns=time_ns, bounds_ns=bounds, finished_ns=np.maximum(bounds, ended[graph.due]))
