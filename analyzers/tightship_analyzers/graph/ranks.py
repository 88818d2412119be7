"""Several ranks as one graph: a collective moves nothing before all its ranks have arrived.

[Note: meetings] Each rank's event of a collective lasts from its own arrival to the common end, so the shortest of
them, that of the last rank to arrive, is the transfer, and what the others take longer is waiting. In the joint graph
the end depends on the latest arrival of all ranks. Which events belong together and how far the clocks are apart says
`across_ranks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.graph.model import Graph
from tightship_analyzers.graph.simulate import Run, delays, durations, run_of, settled
from tightship_analyzers.ranks.arrivals import collective_arrivals
from tightship_analyzers.ranks.clocks import ABSENT, Matched, match
from tightship_analyzers.trace.columns import Int64s
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.not_applicable import NotApplicable


@dataclass(frozen=True, slots=True, eq=False)
class Meeting:
    """One collective of at least two of the ranks."""

    nodes: Mapping[int, int]
    """Rank (place in `Ranks.graphs`) → node of its event."""
    arrived_ns: int
    """When the last rank had arrived, on the common clock."""
    transfer_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """The graphs of some ranks of one job and where they meet."""

    graphs: tuple[Graph, ...]
    shift_ns: Int64s
    """(ranks,) the common clock's time of each graph's root."""
    meetings: tuple[Meeting, ...]
    apart: str | None
    """Why the ranks do not meet at all, and each is simulated by itself; None where they do."""

    @classmethod
    def of(cls, ranks: Sequence[tuple[Trace, Graph]]) -> Self:
        """Find the meetings of some ranks."""
        graphs = tuple(graph for _, graph in ranks)
        arrivals = {place: collective_arrivals(trace) for place, (trace, _) in enumerate(ranks)}
        matched = match({place: own for place, own in arrivals.items() if not isinstance(own, NotApplicable)})
        apart = matched.reason if isinstance(matched, NotApplicable) else None
        offset = {} if isinstance(matched, NotApplicable) else matched.offset_ns
        base = np.array([graph.base_ns + offset.get(place, 0) for place, graph in enumerate(graphs)], dtype=np.int64)
        shift = base - base.min()
        meetings = () if isinstance(matched, NotApplicable) else _meetings(ranks, matched, int(base.min()))
        return cls(graphs, shift, meetings, apart)

    def without_waiting(self, rank: int) -> Edits:
        """For a run of this rank's graph alone: its collectives take their transfer only, as if the other ranks always
        had arrived. What it saves is what this rank loses by waiting for others."""
        graph = self.graphs[rank]
        own = [(meeting.nodes[rank], meeting.transfer_ns) for meeting in self.meetings if rank in meeting.nodes]
        rows = [int(graph.row[node]) for node, _ in own]
        left = [transfer / max(1, int(graph.dur_ns[node])) for node, transfer in own]
        return Edits.without_device(rows, left)

    def simulate(self, edits: Mapping[int, Edits] | None = None) -> list[Run]:
        """Run all ranks together.

        :param edits: place of a rank → what it does differently. A collective's own time is that of the rank which
            has it shortest; shares of device time act on the transfer, not on waiting for others.
        """
        edits = edits or {}
        first = np.cumsum([0, *(len(graph) for graph in self.graphs)])
        dur = [durations(graph, edits.get(rank)) for rank, graph in enumerate(self.graphs)]
        delay = [delays(graph, edits.get(rank), dur[rank]) for rank, graph in enumerate(self.graphs)]
        count = int(first[-1])
        time = [self.shift_ns[rank] + graph.time_ns for rank, graph in enumerate(self.graphs)]
        at = np.concatenate((*time, [meeting.arrived_ns for meeting in self.meetings]))
        src = [first[rank] + graph.src for rank, graph in enumerate(self.graphs)]
        dst = [first[rank] + graph.dst for rank, graph in enumerate(self.graphs)]
        extra: list[tuple[int, int, int]] = []
        transfers: list[dict[int, int]] = []
        for number, meeting in enumerate(self.meetings):
            transfers.append({})
            for rank, node in meeting.nodes.items():
                graph = self.graphs[rank]
                extra.append((int(first[rank]) + node, count + number, 0))
                whole = int(graph.dur_ns[node])
                moved = meeting.transfer_ns * int(dur[rank][node]) // whole if whole else 0
                # Ends of one collective differ a little between ranks.
                late = int(time[rank][node]) + whole - meeting.arrived_ns - meeting.transfer_ns
                transfers[number][rank] = max(moved + late, 0)
                for edge in np.flatnonzero((graph.src == node) & graph.of_end & (delay[rank] >= 0)).tolist():
                    lag = int(delay[rank][edge]) - int(dur[rank][node])
                    extra.append((count + number, int(dst[rank][edge]), max(transfers[number][rank] + lag, 0)))
                    delay[rank][edge] = -1
        roots = [(count + len(self.meetings), int(first[rank]), int(self.shift_ns[rank])) for rank in range(len(time))]
        more = np.array([*extra, *roots], dtype=np.int64).reshape(-1, 3)
        happened = _settle(
            np.append(at, -1),
            np.concatenate((*src, more[:, 0])),
            np.concatenate((*dst, more[:, 1])),
            np.concatenate((*delay, more[:, 2])),
        )
        for number, meeting in enumerate(self.meetings):
            for rank, node in meeting.nodes.items():
                end = int(happened[count + number]) + transfers[number][rank]
                dur[rank] = dur[rank].copy() if dur[rank] is self.graphs[rank].dur_ns else dur[rank]
                dur[rank][node] = end - int(happened[first[rank] + node])
        return [
            run_of(graph, happened[first[rank] : first[rank + 1]] - self.shift_ns[rank], dur[rank])
            for rank, graph in enumerate(self.graphs)
        ]


def _settle(at: Int64s, src: Int64s, dst: Int64s, delay: Int64s) -> Int64s:
    """The joint pass: causes first by the common clock, at one moment ranks in order and meetings last."""
    order = np.argsort(at, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    src, dst = rank[src], rank[dst]
    forward = np.where(src < dst, delay, -1)
    by_dst = np.argsort(dst, kind="stable")
    return settled(len(at), src[by_dst], dst[by_dst], forward[by_dst])[rank]


def _meetings(ranks: Sequence[tuple[Trace, Graph]], matched: Matched, zero_ns: int) -> tuple[Meeting, ...]:
    node_of = {}
    for place in matched.ranks:
        events, graph = ranks[place][0].device_events, ranks[place][1]
        times = zip(events.start_ns[graph.row[graph.device]], events.end_ns[graph.row[graph.device]], strict=True)
        node_of[place] = {
            (int(start), int(end)): int(node) for (start, end), node in zip(times, graph.device, strict=True)
        }
    meetings = []
    for start, end in zip(matched.start_ns, matched.end_ns, strict=True):
        there = [column for column in range(len(matched.ranks)) if start[column] != ABSENT]
        arrived = int(start[there].max())
        # What ends in the moment of the last arrival leaves no room for a transfer.
        if int(end[there].min()) <= arrived:
            continue
        nodes = {}
        for column in there:
            place = matched.ranks[column]
            offset = matched.offset_ns[place]
            nodes[place] = node_of[place][int(start[column]) - offset, int(end[column]) - offset]
        meetings.append(Meeting(nodes, arrived - zero_ns, int((end[there] - start[there]).min())))
    return tuple(meetings)
