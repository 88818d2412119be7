"""The table as a grid: the same operations (slots) in every step on every data-parallel rank.

All steps of a training job do the same operations in the same pipeline schedule, and so do all data-parallel ranks. A
dependency graph of one step on one of them therefore serves for all, and an analysis can treat each slot's times as an
array of shape (steps, dp_ranks).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tightship_analyzers.trace.op_table.op_types import OpType
from tightship_analyzers.trace.op_table.table import DEFAULT_LIMITS, Int8s, Int64s, Limits, OpTable, OpTableError
from tightship_platform.units import plural


class Worker(NamedTuple):
    """One rank of the data-parallel × pipeline grid."""

    dp_rank: int
    stage: int
    rank: int
    """Global rank."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpGrid:
    """Slots by type, number and stage; their times by step and data-parallel rank."""

    source: str
    steps: Int64s
    """Step numbers, ascending (steps,)."""
    dp_ranks: int
    stages: int
    op_type: Int8s
    """(slots,), as `seq`, `stage`, `chunk` and `model_chunk`."""
    seq: Int64s
    stage: Int64s
    chunk: Int64s
    model_chunk: Int64s
    start_ns: Int64s
    """Since the step's first start (slots, steps, dp_ranks)."""
    end_ns: Int64s
    workers: tuple[Worker, ...]
    warnings: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.op_type)

    def name(self, slot: int) -> str:
        """For messages: `forward-send 3 of stage 1`."""
        return f"{OpType(self.op_type[slot]).label} {self.seq[slot]} of stage {self.stage[slot]}"

    @property
    def step_ns(self) -> Int64s:
        """Measured length of each step: first start to last end on any worker (steps,)."""
        lengths: Int64s = self.end_ns.max(axis=(0, 2)) - self.start_ns.min(axis=(0, 2))
        return lengths


def op_grid(table: OpTable, *, limits: Limits = DEFAULT_LIMITS) -> OpGrid:
    """Arranges the table; a step whose operations differ from those of most steps is left out, with a warning.

    :raises OpTableError: no step has the same operations on all its data-parallel ranks, or a worker has two ranks.
    """
    dp_ranks, stages = int(table.dp_rank.max()) + 1, int(table.stage.max()) + 1
    key = _slot_keys(table, stages)
    order = np.lexsort((key, table.dp_rank, table.step))
    steps, first, rows = np.unique(table.step[order], return_index=True, return_counts=True)
    by_content: dict[bytes, list[int]] = defaultdict(list)
    for number, (begin, count) in enumerate(zip(first.tolist(), rows.tolist(), strict=True)):
        keys = key[order[begin : begin + count]]
        ranks = table.dp_rank[order[begin : begin + count]]
        if _is_whole(keys, ranks, dp_ranks):
            by_content[keys[: count // dp_ranks].tobytes()].append(number)
    if not by_content:
        raise OpTableError(
            f"Op table {table.source} has no step with the same operations on all {dp_ranks} data-parallel ranks"
        )
    kept = np.array(max(by_content.values(), key=len))
    slots = int(rows[kept[0]]) // dp_ranks
    if slots > limits.ops_per_lane:
        raise OpTableError(
            f"Op table {table.source} has {slots} operations per step and data-parallel rank; "
            f"expected at most {limits.ops_per_lane}"
        )
    cells = order[(first[kept][:, None] + np.arange(slots * dp_ranks)).ravel()]
    cells = cells.reshape(len(kept), dp_ranks, slots).transpose(2, 0, 1)
    lane = cells[:, 0, 0]
    return OpGrid(
        source=table.source,
        steps=steps[kept],
        dp_ranks=dp_ranks,
        stages=stages,
        op_type=table.op_type[lane],
        seq=table.seq[lane],
        stage=table.stage[lane],
        chunk=table.chunk[lane],
        model_chunk=table.model_chunk[lane],
        start_ns=np.ascontiguousarray(table.start_ns[cells]),
        end_ns=np.ascontiguousarray(table.end_ns[cells]),
        workers=_workers(table, dp_ranks, stages),
        warnings=(*table.warnings, *_left_out(steps, kept)),
    )


def _slot_keys(table: OpTable, stages: int) -> Int64s:
    """One number per (type, seq, stage)."""
    seqs = int(table.seq.max()) + 1
    return (table.op_type.astype(np.int64) * seqs + table.seq) * stages + table.stage


def _is_whole(keys: Int64s, ranks: Int64s, dp_ranks: int) -> bool:
    """Does every data-parallel rank have the same operations, each once? Both are sorted by rank, then key."""
    count, rest = divmod(len(keys), dp_ranks)
    if rest or not (ranks == np.repeat(np.arange(dp_ranks), count)).all():
        return False
    lanes = keys.reshape(dp_ranks, count)
    return bool((lanes == lanes[0]).all() and (np.diff(lanes[0]) > 0).all())


def _left_out(steps: Int64s, kept: Int64s) -> list[str]:
    others = np.delete(steps, kept).tolist()
    if not others:
        return []
    shown = ", ".join(map(str, others[:10])) + (", …" if len(others) > 10 else "")
    return [
        f"{len(others)} of {plural(len(steps), 'step')} left out, as their operations differ from the others': {shown}"
    ]


def _workers(table: OpTable, dp_ranks: int, stages: int) -> tuple[Worker, ...]:
    place = table.dp_rank * stages + table.stage
    present, first = np.unique(place, return_index=True)
    ranks = np.full(dp_ranks * stages, -1, dtype=np.int64)
    ranks[present] = table.rank[first]
    if not (ranks[place] == table.rank).all():
        row = int(np.flatnonzero(ranks[place] != table.rank)[0])
        raise OpTableError(
            f"Op table {table.source}: data-parallel rank {table.dp_rank[row]} of stage {table.stage[row]} has the "
            f"ranks {ranks[place[row]]} and {table.rank[row]}; expected one rank per place"
        )
    return tuple(
        Worker(dp_rank=int(number) // stages, stage=int(number) % stages, rank=int(ranks[number])) for number in present
    )
