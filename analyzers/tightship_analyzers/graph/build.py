"""From a trace to its dependency graph."""

from __future__ import annotations

import numpy as np

from tightship_analyzers.graph.device_edges import DeviceEdges
from tightship_analyzers.graph.host_nodes import HostNodes
from tightship_analyzers.graph.model import Counts, Edge, Graph, Node
from tightship_analyzers.graph.streams import Streams
from tightship_analyzers.graph.threads import hand_overs
from tightship_analyzers.graph.waits import HostWaits, host_waits, stream_waits
from tightship_analyzers.trace.columns import Bools, Int8s, Int64s
from tightship_analyzers.trace.model import Trace

MAX_TIES = 64
"""Nodes of one nanosecond that may depend on each other in a row; beyond that the times are not to be trusted."""


def build(trace: Trace, bounds_ns: Int64s, tid: int, unseen_until_ns: int = 0) -> Graph:
    """The dependencies of one rank's trace.

    :param bounds_ns: ascending ends of the steps, the first one being the start of the first step.
    :param tid: the thread that makes the steps and calls for the backward passes; -1 for none.
    :param unseen_until_ns: until then the device ran what is not in the trace, and its first work had to wait.
    """
    streams = Streams.of(trace)
    waits, between = host_waits(trace, streams), stream_waits(trace, streams)
    handed = hand_overs(trace, tid, bounds_ns)
    host = HostNodes.of(trace, streams, waits, handed, bounds_ns, tid)
    device = DeviceEdges(trace, streams, between)
    parts = _Parts(trace, streams, host, device, waits)
    bound, inferred, contradicted = 1 + host.bound, device.inferred, between.contradicted
    # All of it is in the parts now; the order takes as much memory again.
    del host, device, waits, between
    order, kept = parts.causes_first()
    parts.hold_the_rest(kept, first_too=unseen_until_ns > trace.start_ns)
    kept = np.append(kept, np.ones(len(parts.src) - len(kept), dtype=np.bool_))
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    src, dst = rank[parts.src[kept]], rank[parts.dst[kept]]
    by_dst = np.lexsort((parts.edge[kept], dst))
    by_launch = np.argsort(streams.launched_ns, kind="stable")
    return Graph(
        base_ns=trace.start_ns,
        time_ns=parts.time_ns[order],
        node=parts.node[order],
        row=parts.row[order].astype(np.int32),
        tid=parts.tid[order].astype(np.int32),
        src=src[by_dst].astype(np.int32),
        dst=dst[by_dst].astype(np.int32),
        edge=parts.edge[kept][by_dst],
        of_end=parts.of_end[kept][by_dst],
        lag_ns=parts.lag_ns[kept][by_dst],
        excess_ns=parts.excess_ns[kept][by_dst],
        dur_ns=parts.dur_ns[order],
        bound=rank[bound],
        due=np.searchsorted(streams.launched_ns[by_launch], bounds_ns, side="left"),
        by_launch=rank[parts.first_device + by_launch],
        counts=Counts(
            unlinked=int((~streams.linked).sum()),
            inferred=inferred,
            contradicted=contradicted + int((~kept).sum()),
            hand_overs=len(handed.left_ns),
        ),
    )


class _Parts:
    """All nodes and edges before they are in order: the root, the host's points, the device events."""

    def __init__(self, trace: Trace, streams: Streams, host: HostNodes, device: DeviceEdges, waits: HostWaits) -> None:
        events, points = trace.device_events, len(host.tid)
        count = len(events)
        self.first_device = 1 + points
        root = np.zeros(1, dtype=np.int64)
        self.time_ns = np.concatenate((root, host.time_ns - trace.start_ns, events.start_ns - trace.start_ns))
        self.node: Int8s = np.concatenate((root, host.node, np.full(count, Node.DEVICE))).astype(np.int8)
        self.row = np.concatenate((root - 1, host.row, np.arange(count)))
        self.tid = np.concatenate((root - 1, host.tid, np.full(count, -1)))
        self.dur_ns = np.concatenate((root, np.zeros(points, dtype=np.int64), events.dur_ns))

        own_src, own_dst, own_edge, own_lag = host.edges()
        launch = device.edge == Edge.LAUNCH
        device_src = self.first_device + device.src
        device_src[launch] = 1 + host.call_of[device.src[launch]]
        wait_kind = np.where(waits.queue, Edge.QUEUE, Edge.SYNC)
        zero = np.zeros(len(own_src), dtype=np.int64)
        self.src = np.concatenate((1 + own_src, device_src, self.first_device + waits.event))
        self.dst = np.concatenate(
            (1 + own_dst, self.first_device + device.dst, 1 + host.return_of[waits.call[waits.place]])
        )
        self.edge: Int8s = np.concatenate((own_edge, device.edge, wait_kind)).astype(np.int8)
        self.lag_ns = np.concatenate((own_lag, device.lag_ns, waits.lag_ns))
        self.excess_ns = np.concatenate((zero, device.excess_ns, waits.excess_ns))
        self.of_end: Bools = np.concatenate((zero > 0, ~launch, ~waits.of_start))
        self._unlinked = self.first_device + np.flatnonzero(~streams.linked)

    def causes_first(self) -> tuple[Int64s, Bools]:
        """An order of the nodes in which causes come first, and the edges that fit into it.

        By time; nodes of one nanosecond by their edges. An edge against the time (an effect that was recorded before
        its cause) does not fit, and without such edges no circle is possible.
        """
        step = self.time_ns[self.dst] - self.time_ns[self.src]
        ties = np.flatnonzero(step == 0)
        level = self._places()
        for _ in range(MAX_TIES):
            least = level[self.src[ties]] + 1
            if (level[self.dst[ties]] >= least).all():
                break
            np.maximum.at(level, self.dst[ties], least)
        order = np.lexsort((level, self.time_ns))
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return order, rank[self.src] < rank[self.dst]

    def _places(self) -> Int64s:
        """(nodes,) of a thread's points at one moment: which of them each is, from 0; of all other nodes 0."""
        place = np.arange(len(self.time_ns))
        alone = np.append(True, (np.diff(self.time_ns) != 0) | (np.diff(self.tid) != 0))
        alone[self.first_device :] = True
        return place - np.maximum.accumulate(np.where(alone, place, 0))

    def hold_the_rest(self, kept: Bools, *, first_too: bool) -> None:
        """Edges from the root to what nothing else holds: first nodes, device events without a launch that fits.

        :param first_too: hold the first device event as well.
        """
        held = np.zeros(len(self.time_ns), dtype=np.bool_)
        held[0] = True
        held[self.dst[kept]] = True
        held[self._unlinked] = False
        held[self.first_device : self.first_device + 1] &= not first_too
        free = np.flatnonzero(~held)
        kinds = np.where(free < self.first_device, Edge.START, Edge.ANCHOR)
        self.src = np.append(self.src, np.zeros(len(free), dtype=np.int64))
        self.dst = np.append(self.dst, free)
        self.edge = np.append(self.edge, kinds).astype(np.int8)
        self.lag_ns = np.append(self.lag_ns, self.time_ns[free])
        self.excess_ns = np.append(self.excess_ns, np.zeros(len(free), dtype=np.int64))
        self.of_end = np.append(self.of_end, np.zeros(len(free), dtype=np.bool_))
