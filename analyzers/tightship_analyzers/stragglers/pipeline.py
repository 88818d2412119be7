"""Sends and receives of the pipeline: which computation each belongs to, and which is its other end.

[Note: operations without a partner] Profilers record sends and receives that transfer nothing: receives after the
stage's last computation, sends before its first, and, with interleaved chunks, those of the model's two ends. They
stay in the order of their stream but wait for nobody.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from tightship_analyzers.stragglers.grid import OpGrid
from tightship_analyzers.trace.op_table.op_types import OpType
from tightship_analyzers.trace.op_table.table import OpTableError

CLOCK_ERROR_NS = 50_000
"""Two clocks of one job may differ by this much; source: the published analysis (5e-5 s)."""


@dataclass(frozen=True, slots=True)
class Direction:
    """Activations flow forward, to the next stage; gradients backward, to the one before."""

    compute: OpType
    send: OpType
    recv: OpType
    towards: int
    """Stage number of the receiver minus the sender's, except at the wrap-around of interleaved chunks."""


DIRECTIONS = (
    Direction(OpType.FORWARD_COMPUTE, OpType.FORWARD_SEND, OpType.FORWARD_RECV, 1),
    Direction(OpType.BACKWARD_COMPUTE, OpType.BACKWARD_SEND, OpType.BACKWARD_RECV, -1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """What the sends and receives of one step wait for."""

    after: list[tuple[int, int]]
    """(slot, slot that has to end before it starts)."""
    pairs: list[tuple[int, int]]
    """(send, receive)."""


class StageOrder:
    """The slots of each stage and type in the order in which the first step's first data-parallel rank ran them."""

    def __init__(self, grid: OpGrid) -> None:
        self.start_ns: list[int] = grid.start_ns[:, 0, 0].tolist()
        self.end_ns: list[int] = grid.end_ns[:, 0, 0].tolist()
        keys = zip(self.start_ns, grid.seq.tolist(), grid.op_type.tolist(), range(len(grid)), strict=True)
        self._slots: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self._rank: dict[int, int] = {}
        stages, kinds = grid.stage.tolist(), grid.op_type.tolist()
        for rank, (*_, slot) in enumerate(sorted(keys)):
            self._slots[stages[slot], kinds[slot]].append(slot)
            self._rank[slot] = rank

    def of(self, stage: int, *kinds: OpType) -> list[int]:
        """Slots of these types on this stage, by start."""
        if len(kinds) == 1:
            return self._slots.get((stage, kinds[0]), [])
        slots = [slot for kind in kinds for slot in self._slots.get((stage, kind), ())]
        return sorted(slots, key=self._rank.__getitem__)


def transfers(grid: OpGrid, order: StageOrder) -> Transfers:
    """Matches every send and receive with its computation and its other end.

    :raises OpTableError: a transfer lacks an end, or a stage has fewer transfers than computations.
    """
    chunks = grid.stages * (int(grid.chunk.max()) + 1)
    after: list[tuple[int, int]] = []
    sends: dict[tuple[OpType, int, int], int] = {}
    recvs: dict[tuple[OpType, int, int], int] = {}
    for stage in range(grid.stages):
        for way in DIRECTIONS:
            computes = order.of(stage, way.compute)
            sent = received = 0
            for slot, number in _belonging(grid, order, stage, way, way.send):
                after.append((slot, computes[number]))
                if 0 <= int(grid.model_chunk[computes[number]]) + way.towards < chunks:
                    sends[way.send, stage, sent] = slot
                    sent += 1
            for slot, number in _belonging(grid, order, stage, way, way.recv):
                after.append((computes[number], slot))
                if number:
                    after.append((slot, computes[number - 1]))
                if 0 <= int(grid.model_chunk[computes[number]]) - way.towards < chunks:
                    recvs[way.send, (stage - way.towards) % grid.stages, received] = slot
                    received += 1
    unmatched = sends.keys() ^ recvs.keys()
    if unmatched:
        key = min(unmatched)
        slot = sends[key] if key in sends else recvs[key]
        raise OpTableError(f"Op table {grid.source}: {grid.name(slot)} has no other end; give the rows of all stages")
    return Transfers(after=after, pairs=[(sends[key], recvs[key]) for key in sends])


def _belonging(grid: OpGrid, order: StageOrder, stage: int, way: Direction, kind: OpType) -> Iterator[tuple[int, int]]:
    """(slot of a send or receive, number of its computation in the stage's order)."""
    computes, slots = order.of(stage, way.compute), order.of(stage, kind)
    if not computes:
        return
    if kind is way.recv:
        last_start = max(order.start_ns[slot] for slot in computes)
        slots = [slot for slot in slots if order.start_ns[slot] <= last_start + CLOCK_ERROR_NS]
    else:
        first_end = min(order.end_ns[slot] for slot in computes)
        slots = [slot for slot in slots if order.end_ns[slot] >= first_end - CLOCK_ERROR_NS]
    # The stages at the two ends of the pipeline have none, or, with interleaved chunks, may lack the very first.
    skipped = len(computes) - len(slots)
    if slots and (skipped not in (0, 1) or (skipped and stage not in (0, grid.stages - 1))):
        raise OpTableError(
            f"Op table {grid.source}: stage {stage} has {len(slots)} {kind.label} for {len(computes)} "
            f"{way.compute.label}; expected one each"
        )
    begin = skipped if kind is way.recv else 0
    for number, slot in enumerate(slots, start=begin):
        yield slot, number
