"""The dependency graph as columns.

[Note: the graph] Nodes are moments at which something may have had to wait: calls that launch device work, begin and
end of calls that block, hand-overs between threads, bounds of steps, and the starts of device events. What a thread
does between two of its nodes (operators, Python) is not a node but the delay of the edge between them. So edits of host
time change delays, and a trace of two million events needs half a million nodes at most.

An edge says: `dst` is not before `src` (before the end of the device event, where `of_end`) plus `lag_ns`. The lags of
a node's edges are chosen so that the edge which held it up in the recording explains when it happened; all others get
the typical delay of their kind. A delay beyond what is plausible for its kind is not in the lag but in `excess_ns`: the
simulation does not wait for what nobody can explain, and so misses the measured step by just that. There is no slack
per node that could hide an edge: remove what held a node up, and it moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from tightship_analyzers.trace.columns import Bools, Int8s, Int32s, Int64s


class Node(IntEnum):
    """What happens at a node."""

    ROOT = 0
    """The start of the trace: what the first nodes and the anchored ones hang on."""
    LAUNCH = 1
    """A call that starts device work begins; `row` in `Trace.launches`."""
    BLOCK = 2
    """A call that may wait for the device begins; `row` in `Trace.launches`."""
    RETURN = 3
    """Such a call returns; `row` in `Trace.launches`."""
    HAND_OVER = 4
    """A thread hands work to another one, begins it, ends it, or goes on; no row."""
    BOUND = 5
    """A step ends and the next begins; `row` is the number of the bound."""
    DEVICE = 6
    """A device event starts; `row` in `Trace.device_events`."""


class Edge(IntEnum):
    """Why a node waits for another. Of two edges that explain a node equally well the first kind here is taken."""

    HOST = 0
    """Order on a thread; the lag is what the thread did in between."""
    HAND_OVER = 1
    """From one thread to another: the caller of a backward pass and autograd's thread."""
    SYNC = 2
    """The host waits for a device event; the lag is the return to the host."""
    QUEUE = 3
    """A launch waits until the device has taken an earlier event from its full queue."""
    STREAM = 4
    """Order in a stream; the lag is the gap between two events that both were ready."""
    WAIT = 5
    """A stream waits for an event of another stream, as the trace records it or as the order of calls says."""
    INFERRED = 6
    """As WAIT, but only the times say so: it starts just when the other ends, and nothing else explains it."""
    LAUNCH = 7
    """From the call to the device event; the lag is the launch latency."""
    START = 8
    """First node of a thread or stream: as long after the start of the trace as measured."""
    ANCHOR = 9
    """A device event without its launch: not before its measured start."""


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """What was met while the graph was built."""

    unlinked: int
    """Device events without their launch: anchored to their measured start."""
    inferred: int
    """Waits between streams that only the times show."""
    contradicted: int
    """Dependencies that the times contradict (an effect before its cause): left out."""
    hand_overs: int
    """Bursts of a backward thread for which another thread waited."""


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """One rank's dependencies; see [Note: the graph]. Nodes are in an order in which causes come first."""

    base_ns: int
    """Time of the root."""
    time_ns: Int64s
    """(nodes,) measured, after the root."""
    node: Int8s
    """(nodes,) a `Node`."""
    row: Int32s
    """(nodes,) see `Node`; -1 for none."""
    tid: Int32s
    """(nodes,) thread of a host node; -1 for the root and for device events."""

    src: Int32s
    dst: Int32s
    """(edges,) node numbers, src < dst; in order of dst."""
    edge: Int8s
    """(edges,) an `Edge`."""
    of_end: Bools
    """(edges,) from the end of the device event `src`, not from its start."""
    lag_ns: Int64s
    """(edges,)"""
    excess_ns: Int64s
    """(edges,) measured beyond the lag, which no known cause explains; 0 for almost all."""

    dur_ns: Int64s
    """(nodes,) of the device event; 0 for host nodes."""
    bound: Int64s
    """(bounds,) nodes of the steps' bounds."""
    due: Int64s
    """(bounds,) how many entries of `by_launch` belong to what was launched before each bound."""
    by_launch: Int64s
    """(device events,) nodes of device events by the time of their launch."""
    counts: Counts

    def __len__(self) -> int:
        return len(self.time_ns)

    @property
    def device(self) -> Int64s:
        """Nodes of device events."""
        return np.flatnonzero(self.node == Node.DEVICE)
