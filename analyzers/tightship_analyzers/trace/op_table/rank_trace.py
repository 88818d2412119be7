"""One rank of an op table as a canonical trace, so that whatever judges traces judges it too.

[Note: an op table as a trace] An operation is an event of the device: computation in one stream, each kind of transfer
in one each. Collectives carry group and number, so that ranks can be compared. A table knows no host:
analyses that need operators, launches or stacks say so. Only a collection of garbage, which tables list, is put where
traces have it, as a Python frame. Tables pick steps out of a long run and count each from its own start: here they
follow one another at once, on one clock for all ranks. The optimizer's marks, which bound steps, are the steps' ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightship_analyzers.trace.columns import (
    Annotations,
    Collectives,
    DeviceEvents,
    EventKind,
    Evidence,
    Frames,
    HostOps,
    Launches,
    Links,
    MemoryEvents,
    Overheads,
    Syncs,
    blank_columns,
)
from tightship_analyzers.trace.model import NO_NAME, Thread, Trace
from tightship_analyzers.trace.names import Names
from tightship_analyzers.trace.op_table.op_types import COMMUNICATES, POINT_TO_POINT, OpType
from tightship_analyzers.trace.op_table.table import Int64s, OpTable, OpTableError
from tightship_analyzers.trace.step_marks import OPTIMIZER, START

COMPUTE_STREAM = 0
"""Of computation; transfers of type t are in stream 1 + t."""

_SHARED = frozenset(COMMUNICATES) - {OpType.OPTIMIZER_CLIP_MAIN_GRAD}
"""Clipping computes norms and reduces them: mostly computation."""
_STEP, _GARBAGE = f"{OPTIMIZER}op table", "Python GC"


def ranks_of(table: OpTable) -> list[int]:
    """The global ranks that a table has rows of, ascending."""
    found: list[int] = np.unique(table.rank).tolist()
    return found


def rank_trace(table: OpTable, rank: int) -> Trace:
    """What one global rank did, see [Note: an op table as a trace].

    :raises OpTableError: the table has no row of this rank.
    """
    mine = np.flatnonzero(table.rank == rank)
    if not len(mine):
        ranks = ranks_of(table)
        known = ", ".join(map(str, ranks[:10])) + (", …" if len(ranks) > 10 else "")
        raise OpTableError(f"Op table {table.source} has no rank {rank}; it has {known}")
    bounds = _step_bounds(table)
    _, step = np.unique(table.step, return_inverse=True)
    start_ns, end_ns = bounds[step] + table.start_ns, bounds[step] + table.end_ns
    order = mine[np.lexsort((-end_ns[mine], start_ns[mine]))]
    stage = int(table.stage[mine[0]])
    labels = [kind.label for kind in OpType]
    groups = [f"{label} of stage {stage}" for label in labels]
    names = Names([*labels, *groups, _STEP, START, _GARBAGE])
    on_host = table.op_type[order] == OpType.GC
    garbage, events = order[on_host], order[~on_host]
    kind = table.op_type[events].astype(np.int64)
    shared = np.isin(kind, [int(one) for one in _SHARED])
    numbered = np.flatnonzero(shared & ~np.isin(kind, [int(one) for one in POINT_TO_POINT]))
    rows = events[numbered]
    marks = _all(bounds, names.id(_STEP))
    marks[0] = names.id(START)
    times = {"start_ns": start_ns, "end_ns": end_ns}
    workers = len(np.unique(table.rank))
    most = int(table.seq.max()) + 1

    def of(chosen: Int64s, **columns: Any) -> dict[str, NDArray[Any]]:
        return {name: column[chosen] for name, column in times.items()} | columns

    return Trace(
        source=f"{table.source}#rank={rank}",
        device_name=NO_NAME,
        device_kind="gpu",
        rank=rank,
        world_size=workers,
        distributed={"rank": rank, "world_size": workers, "pipeline_stage": stage},
        base_ns=0,
        start_ns=int(bounds[0]),
        end_ns=int(bounds[-1]),
        trace_id="",
        events=len(order),
        warnings=list(table.warnings),
        names=names,
        threads=(Thread(0, 0, "training"),),
        shapes=(),
        host_ops=HostOps(**blank_columns(HostOps)),
        annotations=Annotations(
            **blank_columns(Annotations, len(bounds))
            | {"start_ns": bounds, "end_ns": bounds, "name": marks, "tid": _all(bounds, 0)}
        ),
        device_annotations=Annotations(**blank_columns(Annotations)),
        frames=Frames(
            **blank_columns(Frames, len(garbage))
            | of(garbage, name=_all(garbage, names.id(_GARBAGE)), tid=_all(garbage, 0))
        ),
        launches=Launches(**blank_columns(Launches)),
        device_events=DeviceEvents(
            **blank_columns(DeviceEvents, len(events))
            | of(
                events,
                name=kind.astype(np.int32),
                device=_all(events, 0),
                stream=np.where(shared, 1 + kind, COMPUTE_STREAM),
                kind=np.where(shared, EventKind.COLLECTIVE, EventKind.KERNEL).astype(np.int8),
                evidence=np.where(shared, Evidence.ARGUMENTS, Evidence.NONE).astype(np.int8),
            )
        ),
        syncs=Syncs(**blank_columns(Syncs)),
        memory_events=MemoryEvents(**blank_columns(MemoryEvents)),
        overheads=Overheads(**blank_columns(Overheads)),
        links=Links(**blank_columns(Links)),
        collectives=Collectives(
            **blank_columns(Collectives, len(numbered))
            | of(
                rows,
                name=kind[numbered].astype(np.int32),
                row=numbered,
                on_device=np.ones(len(numbered), dtype=np.bool_),
                seq=step[rows] * most + table.seq[rows],
                group=(kind[numbered] + len(labels)).astype(np.int32),
                group_size=np.full(len(numbered), len(np.unique(table.dp_rank)), dtype=np.int64),
            )
        ),
    )


def _step_bounds(table: OpTable) -> Int64s:
    """(steps + 1,) starts of the steps, one after the other, and the end of the last one."""
    _, step = np.unique(table.step, return_inverse=True)
    length = np.zeros(int(step.max()) + 1, dtype=np.int64)
    np.maximum.at(length, step, table.end_ns)
    return np.append(0, np.cumsum(length))


def _all(rows: Int64s, value: int) -> Any:
    return np.full(len(rows), value, dtype=np.int32)
