"""The device's side of the graph: why each device event started when it did.

[Note: delays] A device event starts when its stream is free, its launch has arrived and the events it waits for have
ended, whichever is last. When each of these would have let it start is known except for a small delay: the typical gap
between two events of a full queue, and the typical latency of a launch on an empty one, both medians of this trace. The
last of them held the event up; what is left until its start is that one's own delay, up to PLAUSIBLE_NS more than
typical. Beyond that it is excess: nobody knows what it waited for. Only of a launched CUDA graph all is its own delay,
for not all that a graph does is recorded.
"""

from __future__ import annotations

import numpy as np

from tightship_analyzers.graph.model import Edge
from tightship_analyzers.graph.streams import Streams
from tightship_analyzers.graph.waits import StreamWaits
from tightship_analyzers.trace.columns import Int8s, Int64s
from tightship_analyzers.trace.model import Trace
from tightship_analyzers.trace.names import matcher
from tightship_analyzers.trace.runtime_calls import GRAPH_LAUNCH

PLAUSIBLE_NS = 30_000
"""A kernel whose turn it is starts within this time; source: HolisticTraceAnalysis, `consecutive_kernel_delay`."""
TAIL_NS = 10_000
"""So long before a kernel's end its last blocks leave room for one of another stream."""
LOOK_BACK = 8
"""Events that ended last and are looked at for one that explains a start."""

_NEVER = np.iinfo(np.int64).min


class DeviceEdges:
    """Edges into device events. `src` is a row in `Trace.device_events`, of LAUNCH edges one in `Trace.launches`."""

    def __init__(self, trace: Trace, streams: Streams, waits: StreamWaits) -> None:
        events = trace.device_events
        chained = np.flatnonzero(streams.before >= 0)
        linked = np.flatnonzero(streams.linked)
        self._events, self._launches, self._streams = events, trace.launches, streams
        self._of_graph = np.zeros(len(events), dtype=np.bool_)
        graphs = trace.names.mask(trace.launches.name, matcher(GRAPH_LAUNCH))
        self._of_graph[linked] = graphs[events.launch[linked]]
        self._gap_ns, self._latency_ns = self._typical(chained[~np.isin(chained, waits.dst)], linked, chained)
        self.src = np.concatenate((streams.before[chained], waits.src, events.launch[linked]))
        self.dst = np.concatenate((chained, waits.dst, linked))
        self.edge: Int8s = np.repeat(
            np.array([Edge.STREAM, Edge.WAIT, Edge.LAUNCH], dtype=np.int8), [len(chained), len(waits.src), len(linked)]
        )
        self._ready()
        self.inferred = self._infer()
        self._assign()

    def _since(self) -> Int64s:
        """(edges,) when the cause happened: the end of an event, the begin of a call."""
        launch = self.edge == Edge.LAUNCH
        since = np.empty(len(self.src), dtype=np.int64)
        since[launch] = self._launches.start_ns[self.src[launch]]
        since[~launch] = self._events.end_ns[self.src[~launch]]
        return since

    def _typical(self, alone: Int64s, linked: Int64s, chained: Int64s) -> tuple[int, int]:
        """Median gap between events of a full queue, median latency of a launch on an empty one; 0 where unknown.

        :param alone: those of `chained` that wait for no other stream: a wait is no gap.
        """
        events, streams = self._events, self._streams
        free = np.full(len(events), _NEVER)
        free[chained] = events.end_ns[streams.before[chained]]
        gap = events.start_ns - free
        queued = alone[streams.linked[alone] & (streams.launched_ns[alone] < free[alone] - PLAUSIBLE_NS)]
        gaps = gap[queued]
        gaps = gaps[gaps <= PLAUSIBLE_NS]
        late = linked[streams.launched_ns[linked] > free[linked]]
        latency = events.start_ns[late] - streams.launched_ns[late]
        latency = latency[latency <= PLAUSIBLE_NS + self._launches.dur_ns[events.launch[late]]]
        return (int(np.median(gaps)) if len(gaps) else 0, int(np.median(latency)) if len(latency) else 0)

    def _ready(self) -> None:
        """Least lags, and for each event the edge that lets it start last."""
        start = self._events.start_ns[self.dst]
        self._since_ns = self._since()
        usual = np.where(self.edge == Edge.LAUNCH, self._latency_ns, self._gap_ns)
        self.lag_ns = np.minimum(usual, start - self._since_ns)
        ready = self._since_ns + self.lag_ns
        # By event, the latest last; of equals the first kind.
        order = np.lexsort((-self.edge.astype(np.int64), ready, self.dst))
        last = np.flatnonzero(np.append(self.dst[order][1:] != self.dst[order][:-1], True)) if len(order) else order
        self._binding = order[last]
        self._left_ns = (start - ready)[self._binding]

    def _infer(self) -> int:
        """Adds a wait for each event that nothing explains, but that began just when one of another stream ended."""
        events, streams = self._events, self._streams
        late = (self._left_ns > PLAUSIBLE_NS) & ~self._of_graph[self.dst[self._binding]]
        rows = self.dst[self._binding[late]]
        ready = events.start_ns[rows] - self._left_ns[late]
        if not len(rows):
            return 0
        by_end = np.argsort(events.end_ns, kind="stable")
        place = np.searchsorted(events.end_ns[by_end], events.start_ns[rows] + TAIL_NS, side="right") - 1
        cause = np.full(len(rows), -1, dtype=np.int64)
        # Short events, among them the one in question, may have ended since: look at the last few.
        for back in range(LOOK_BACK):
            other = by_end[np.maximum(place - back, 0)]
            since = events.end_ns[other]
            fits = (place >= back) & (events.start_ns[rows] - since <= PLAUSIBLE_NS) & (since > ready)
            fits &= streams.launched_ns[other] <= streams.launched_ns[rows]
            fits &= events.start_ns[other] < events.start_ns[rows]
            fits &= (events.device[other] == events.device[rows]) & (streams.index[other] != streams.index[rows])
            cause = np.where((cause < 0) & fits, other, cause)
        src, dst = cause[cause >= 0], rows[cause >= 0]
        if len(src):
            self.src, self.dst = np.append(self.src, src), np.append(self.dst, dst)
            self.edge = np.append(self.edge, np.full(len(src), Edge.INFERRED, dtype=np.int8))
            self._ready()
        return len(src)

    def _assign(self) -> None:
        """What is left until the start goes to the edge that held the event up, as far as it is plausible."""
        edge = self._binding
        allowed = np.full(len(edge), PLAUSIBLE_NS)
        launch = self.edge[edge] == Edge.LAUNCH
        # Loading code or staging a copy happens within the call.
        allowed[launch] += self._launches.dur_ns[self.src[edge[launch]]]
        allowed[self._of_graph[self.dst[edge]]] = np.iinfo(np.int64).max
        own = np.minimum(self._left_ns, allowed)
        self.lag_ns[edge] += own
        self.excess_ns = np.zeros(len(self.src), dtype=np.int64)
        self.excess_ns[edge] = self._left_ns - own
