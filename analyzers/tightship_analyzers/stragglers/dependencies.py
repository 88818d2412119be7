"""The dependency graph of one training step of a data- and pipeline-parallel job.

Per stage, operations wait for

- their stream: computations run one after the other, as do the transfers of each of the four types, and the
  collectives of parameters and gradients;
- their data: a send for its computation; a computation for its receive, which is posted when the computation before it
  (of the same direction) has ended; the first backward transfers for the last but one computation before the first
  backward; a chunk's first forward for its parameters' all-gather;
- the end of the step: garbage collection after the last computation, then layer-norm gradients, embedding gradients,
  gradient reduce-scatter (or, where gradients are reduced while computing, what is left of them), clipping, optimizer.

Across stages, send and receive end together, as do the embedding all-reduce of the first and last stage and the
gradient clipping of all stages. Across data-parallel ranks, the collectives of parameters and gradients and the
clipping end together.

Definitions: Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", 2025
(https://arxiv.org/abs/2505.05713), and its artifact, https://github.com/ByteDance-Seed/StragglerAnalysis.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tightship_analyzers.stragglers.grid import OpGrid
from tightship_analyzers.stragglers.pipeline import StageOrder, transfers
from tightship_analyzers.trace.op_table.op_types import COMPUTES, DATA_PARALLEL, POINT_TO_POINT, OpType
from tightship_analyzers.trace.op_table.table import OpTableError


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Operations of one step that end together: a single one, or the ends of one transfer or collective."""

    slots: tuple[int, ...]
    waits: bool
    """True of communication: it begins to progress when all participants have started."""
    all_dp_ranks: bool
    """The participants are on all data-parallel ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """The graph in an order in which it can be run."""

    units: tuple[Unit, ...]
    """Each comes after all that its slots wait for."""
    parents: tuple[tuple[int, ...], ...]
    """Per slot: the slots that have to end before it starts."""


class _Edges:
    def __init__(self, grid: OpGrid) -> None:
        self.parents: list[dict[int, None]] = [{} for _ in range(len(grid))]

    def add(self, slot: int, parent: int) -> None:
        self.parents[slot][parent] = None

    def chain(self, slots: Iterable[int], first_after: Iterable[int] = ()) -> None:
        """Each slot after the one before it."""
        last = list(first_after)
        for slot in slots:
            for parent in last:
                self.add(slot, parent)
            last = [slot]


def dependencies(grid: OpGrid) -> Dependencies:
    """The graph that all steps and data-parallel ranks share, read off the first step's first one.

    :raises OpTableError: transfers do not match, or operations wait for each other in a circle.
    """
    order, edges = StageOrder(grid), _Edges(grid)
    moved = transfers(grid, order)
    for slot, parent in moved.after:
        edges.add(slot, parent)
    overlapped = bool((grid.op_type == OpType.SEPARATE_GRADS_ALL_REDUCE).any())
    for stage in range(grid.stages):
        _streams(order, edges, stage)
        _first_backward(grid, order, edges, stage)
        _parameters(grid, order, edges, stage)
        if overlapped:
            _overlapped_gradients(grid, order, edges, stage)
        _end_of_step(order, edges, stage, overlapped)
    units = _units(grid, moved.pairs)
    parents = tuple(tuple(found) for found in edges.parents)
    return Dependencies(units=_sorted_units(grid, units, parents), parents=parents)


def _streams(order: StageOrder, edges: _Edges, stage: int) -> None:
    edges.chain(order.of(stage, *COMPUTES))
    for kind in POINT_TO_POINT:
        edges.chain(order.of(stage, kind))
    edges.chain(order.of(stage, OpType.PARAMS_ALL_GATHER, OpType.GRADS_REDUCE_SCATTER))


def _first_backward(grid: OpGrid, order: StageOrder, edges: _Edges, stage: int) -> None:
    """The first backward transfers are posted when the warm-up is over."""
    computes = order.of(stage, *COMPUTES)
    kinds = grid.op_type[computes] == OpType.BACKWARD_COMPUTE
    first = int(kinds.argmax()) if kinds.any() else 0
    if first < 2:
        return
    for kind in (OpType.BACKWARD_RECV, OpType.BACKWARD_SEND):
        for slot in order.of(stage, kind)[:1]:
            edges.add(slot, computes[first - 2])


def _parameters(grid: OpGrid, order: StageOrder, edges: _Edges, stage: int) -> None:
    """A model chunk's first forward waits for the last all-gather of its parameters."""
    gathers = {int(grid.chunk[slot]): slot for slot in _by_seq(grid, order, stage, OpType.PARAMS_ALL_GATHER)}
    for slot in order.of(stage, OpType.FORWARD_COMPUTE):
        gather = gathers.pop(int(grid.chunk[slot]), None)
        if gather is not None:
            edges.add(slot, gather)


def _overlapped_gradients(grid: OpGrid, order: StageOrder, edges: _Edges, stage: int) -> None:
    """A model chunk's first reduce-scatter waits for the last backward of that chunk."""
    last: dict[int, int] = {}
    for slot in order.of(stage, OpType.BACKWARD_COMPUTE):
        chunk = int(grid.chunk[slot])
        if chunk not in last or order.end_ns[slot] > order.end_ns[last[chunk]]:
            last[chunk] = slot
    for slot in _by_seq(grid, order, stage, OpType.GRADS_REDUCE_SCATTER):
        backward = last.pop(int(grid.chunk[slot]), None)
        if backward is not None:
            edges.add(slot, backward)


def _end_of_step(order: StageOrder, edges: _Edges, stage: int, overlapped: bool) -> None:
    computes = order.of(stage, *COMPUTES)
    last = [max(computes, key=order.end_ns.__getitem__)] if computes else []
    collections = order.of(stage, OpType.GC)
    edges.chain(collections, last)
    after = collections[-1:] or last
    kinds = [OpType.LAYERNORM_GRADS_ALL_REDUCE, OpType.EMBEDDING_GRADS_ALL_REDUCE]
    if overlapped:
        after = [*after, *order.of(stage, OpType.GRADS_REDUCE_SCATTER)[-1:]]
        kinds.append(OpType.SEPARATE_GRADS_ALL_REDUCE)
    else:
        kinds.append(OpType.GRADS_REDUCE_SCATTER)
    kinds += [OpType.OPTIMIZER_CLIP_MAIN_GRAD, OpType.OPTIMIZER]
    edges.chain([slot for kind in kinds for slot in order.of(stage, kind)], after)


def _by_seq(grid: OpGrid, order: StageOrder, stage: int, kind: OpType) -> list[int]:
    return sorted(order.of(stage, kind), key=lambda slot: int(grid.seq[slot]))


def _units(grid: OpGrid, pairs: list[tuple[int, int]]) -> list[Unit]:
    units = [Unit(slots=pair, waits=True, all_dp_ranks=False) for pair in pairs]
    paired = {slot for pair in pairs for slot in pair}
    over_stages: defaultdict[tuple[OpType, int], list[int]] = defaultdict(list)
    for slot, code in enumerate(grid.op_type.tolist()):
        kind = OpType(code)
        if kind in (OpType.EMBEDDING_GRADS_ALL_REDUCE, OpType.OPTIMIZER_CLIP_MAIN_GRAD):
            over_stages[kind, int(grid.seq[slot])].append(slot)
        elif slot not in paired:
            waits = kind in POINT_TO_POINT or kind in DATA_PARALLEL
            units.append(Unit(slots=(slot,), waits=waits, all_dp_ranks=kind in DATA_PARALLEL))
    for (kind, _), slots in over_stages.items():
        clips = kind is OpType.OPTIMIZER_CLIP_MAIN_GRAD
        units.append(Unit(slots=tuple(slots), waits=True, all_dp_ranks=clips))
    return units


def _sorted_units(grid: OpGrid, units: list[Unit], parents: tuple[tuple[int, ...], ...]) -> tuple[Unit, ...]:
    unit_of = {slot: number for number, unit in enumerate(units) for slot in unit.slots}
    needed = [{unit_of[parent] for slot in unit.slots for parent in parents[slot]} for unit in units]
    children: list[list[int]] = [[] for _ in units]
    for number, before in enumerate(needed):
        for parent in before:
            children[parent].append(number)
    open_parents = [len(before) for before in needed]
    ready = [number for number, count in enumerate(open_parents) if not count]
    for number in ready:  # grows while it is walked
        for child in children[number]:
            open_parents[child] -= 1
            if not open_parents[child]:
                ready.append(child)
    if len(ready) < len(units):
        stuck = next(number for number, count in enumerate(open_parents) if count)
        raise OpTableError(
            f"Op table {grid.source}: {grid.name(units[stuck].slots[0])} waits for itself through other operations; "
            "the order of the first step's operations cannot be that of one job"
        )
    return tuple(units[number] for number in ready)
