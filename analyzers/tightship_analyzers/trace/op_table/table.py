"""The op table: one row per operation that one worker did in one training step, checked and in integer nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightship_analyzers.trace.op_table.op_types import OpType
from tightship_platform.errors import TightshipError

Int64s = NDArray[np.int64]
Int8s = NDArray[np.int8]

WHOLE_NUMBERS = ("dp_rank", "stage", "rank", "step", "seq_id")
SECONDS = ("start_ts", "duration")
OP_TYPE = "optype"
OPTIONAL = ("mc", "gmc")
MOST = 2**40
"""In columns of whole numbers, so that products of them stay below 2**63."""
REQUIRED = (*WHOLE_NUMBERS, OP_TYPE, *SECONDS)


class OpTableError(TightshipError):
    """A file cannot be read as an op table, or its operations do not fit together. The message names the file."""

    http_status = 422


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds on a table from outside. The published tables of 8 to 128 devices have up to 120,000 rows."""

    rows: int = 20_000_000
    uncompressed_bytes: int = 4 * 2**30
    """Of all columns together, as the file's own directory gives them."""
    dp_ranks: int = 2**16
    stages: int = 2**12
    ops_per_lane: int = 1_000_000
    """Operations of one step on one data-parallel rank, all stages together."""
    step_ns: int = 24 * 3600 * 10**9
    """A longer step means that the times are not in seconds."""


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpTable:
    """Equally long columns, one row per operation, in the file's order."""

    source: str
    """Where it was read from."""
    dp_rank: Int64s
    stage: Int64s
    """Pipeline stage, 0 first."""
    rank: Int64s
    """Global rank of the worker; one per (dp_rank, stage)."""
    step: Int64s
    op_type: Int8s
    """An `OpType`."""
    seq: Int64s
    """Number of the operation among those of its type on its worker in its step, by start."""
    start_ns: Int64s
    """Since the earliest start of the step on any worker."""
    end_ns: Int64s
    chunk: Int64s
    """Model chunk within the stage (virtual stage); -1 where it does not apply."""
    model_chunk: Int64s
    """Model chunk within the model: chunk · stages + stage; -1 where it does not apply."""
    warnings: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.step)


def checked_table(
    source: str,
    columns: Mapping[str, NDArray[Any]],
    op_type: Int8s,
    *,
    limits: Limits = DEFAULT_LIMITS,
    warnings: list[str] | None = None,
) -> OpTable:
    """The table of these columns (names as in the file, times in seconds) and `OpType` codes, -1 for unknown types.

    Rows of unknown types are left out.

    :raises OpTableError: a value is missing, not finite, or outside of what a training job can have.
    """
    known = op_type >= 0
    if not known.any():
        known_types = ", ".join(kind.label for kind in OpType)
        raise OpTableError(f"Op table {source} holds no operation of a known type ({known_types})")
    kept = {name: values[known] for name, values in columns.items()}
    numbers = {name: _whole(source, name, kept[name]) for name in WHOLE_NUMBERS}
    numbers |= {name: _whole(source, name, kept[name], least=-1) for name in OPTIONAL if name in kept}
    op_type = op_type[known]
    stages = _contiguous(source, "stage", numbers["stage"], limits.stages)
    _contiguous(source, "dp_rank", numbers["dp_rank"], limits.dp_ranks)
    start_ns, end_ns = _times(source, numbers["step"], kept, limits)
    chunk = numbers.get("mc", np.zeros(len(op_type), dtype=np.int64))
    model_chunk = numbers.get("gmc", np.where(chunk >= 0, chunk * stages + numbers["stage"], -1))
    return OpTable(
        source=source,
        dp_rank=numbers["dp_rank"],
        stage=numbers["stage"],
        rank=numbers["rank"],
        step=numbers["step"],
        op_type=op_type,
        seq=numbers["seq_id"],
        start_ns=start_ns,
        end_ns=end_ns,
        chunk=chunk,
        model_chunk=model_chunk,
        warnings=list(warnings or ()),
    )


def _whole(source: str, name: str, values: NDArray[Any], *, least: int = 0) -> Int64s:
    if values.dtype.kind not in "iu":
        raise OpTableError(f"Op table {source}: column {name} holds {values.dtype}; expected whole numbers")
    low, high = int(values.min()), int(values.max())
    if low < least or high > MOST:
        bad = low if low < least else high
        raise OpTableError(f"Op table {source}: column {name} holds {bad}; expected {least} to {MOST}")
    return values.astype(np.int64)


def _contiguous(source: str, name: str, values: Int64s, most: int) -> int:
    """How many different values there are, which are to be 0, 1, 2, …"""
    high = int(values.max())
    if high >= most:
        raise OpTableError(f"Op table {source}: column {name} holds {high}; expected less than {most}")
    missing = np.flatnonzero(np.bincount(values) == 0)
    if len(missing):
        raise OpTableError(f"Op table {source} lacks {name} {missing[0]} but has {high}; give the rows of all of them")
    return high + 1


def _times(source: str, step: Int64s, columns: Mapping[str, NDArray[Any]], limits: Limits) -> tuple[Int64s, Int64s]:
    """Start and end in ns since the step's first start.

    Seconds since the epoch lose digits when multiplied, so the step's start is subtracted first.
    """
    for name in SECONDS:
        if columns[name].dtype.kind not in "fiu":
            raise OpTableError(f"Op table {source}: column {name} holds {columns[name].dtype}; expected seconds")
        if not np.isfinite(columns[name]).all():
            raise OpTableError(f"Op table {source}: column {name} holds a value that is missing or not finite")
    start, duration = (columns[name].astype(np.float64) for name in SECONDS)
    if duration.min() < 0:
        raise OpTableError(f"Op table {source}: a duration is {duration.min():g} s; expected 0 or more")
    steps, index = np.unique(step, return_inverse=True)
    first = np.full(len(steps), np.inf)
    np.minimum.at(first, index, start)
    offset = start - first[index]
    longest = float((offset + duration).max())
    if not longest * 1e9 <= limits.step_ns:
        worst = int(step[int((offset + duration).argmax())])
        raise OpTableError(f"Op table {source}: step {worst} takes {longest:g} s; expected times in seconds")
    start_ns = np.rint(offset * 1e9).astype(np.int64)
    return start_ns, start_ns + np.rint(duration * 1e9).astype(np.int64)
