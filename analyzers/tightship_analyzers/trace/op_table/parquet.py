"""Reading op tables from Parquet files, the format of the published ones.

Columns: `dp_rank`, `stage`, `rank`, `step`, `seq_id` (whole numbers), `optype` (text), `start_ts`, `duration`
(seconds); `mc` and `gmc` (model chunk within the stage and within the model) where the pipeline is interleaved.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tightship_analyzers.trace.names import clean
from tightship_analyzers.trace.op_table.op_types import BY_LABEL
from tightship_analyzers.trace.op_table.table import (
    DEFAULT_LIMITS,
    OP_TYPE,
    OPTIONAL,
    REQUIRED,
    Int8s,
    Limits,
    OpTable,
    OpTableError,
    checked_table,
)
from tightship_platform.extras import require_driver
from tightship_platform.units import format_bytes, plural

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

MAGIC = b"PAR1"
BATCH_ROWS = 2**16
MOST_TYPES = 1000
"""Distinct names in the column of types; there are 14 types."""
THRIFT_LIMIT = 16 * 2**20
"""On strings and lists in the file's directory; pyarrow's own default is 100 MB and a million."""


def open_op_table(source: str | os.PathLike[str], *, limits: Limits = DEFAULT_LIMITS) -> OpTable:
    """Reads a table from a path or an fsspec URL.

    :raises OpTableError: it cannot be opened, is not Parquet, lacks a column, or exceeds `limits`.
    """
    location = os.fspath(source)
    shown = clean(location, 1000)
    with _opened(location, shown) as file:
        _check_magic(file, shown)
        # pyarrow raises errors of many classes (ArrowException, OSError, ValueError, NotImplementedError, …) on
        # damaged files; each means the same to the reader.
        try:
            return _read(file, shown, limits)
        except OpTableError:
            raise
        except Exception as error:
            raise OpTableError(f"Op table {shown} is damaged: {clean(str(error), 200)}") from error


@contextmanager
def _opened(location: str, shown: str) -> Iterator[IO[bytes]]:
    if "://" in location:
        file = _opened_url(location, shown)
    else:
        path = Path(location)
        if not path.exists():
            raise OpTableError(f"No op table at {shown}; give a .parquet file or a URL")
        if not path.is_file():
            raise OpTableError(f"Op table {shown} is not a regular file; give a .parquet file")
        try:
            file = path.open("rb")
        except OSError as error:
            raise OpTableError(f"Op table {shown} cannot be read: {error.strerror or error}") from None
    with file:
        yield file


def _opened_url(location: str, shown: str) -> IO[bytes]:
    require_driver(location)
    import fsspec

    try:
        file: IO[bytes] = fsspec.open(location, "rb").open()
    except FileNotFoundError:
        raise OpTableError(f"No op table at {shown}") from None
    except Exception as error:  # Each file system raises its own library's errors.
        raise OpTableError(f"Op table {shown} cannot be opened: {clean(str(error), 300)}") from error
    return file


def _check_magic(file: IO[bytes], shown: str) -> None:
    """Parquet begins and ends with the same four bytes; the directory stands before the end."""
    try:
        head = file.read(len(MAGIC))
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - len(MAGIC), 0))
        tail = file.read(len(MAGIC))
        file.seek(0)
    except OSError as error:
        raise OpTableError(f"Op table {shown} cannot be read: {error.strerror or error}") from None
    if head != MAGIC:
        raise OpTableError(f"Op table {shown} is not a Parquet file; give the table that the profiler wrote")
    if tail != MAGIC or size < 3 * len(MAGIC):
        raise OpTableError(f"Op table {shown} is cut off at byte {size}; copy it again")


def _read(file: IO[bytes], shown: str, limits: Limits) -> OpTable:
    from pyarrow.parquet import ParquetFile

    bounds = {"thrift_string_size_limit": THRIFT_LIMIT, "thrift_container_size_limit": THRIFT_LIMIT}
    names = _columns(ParquetFile(file, **bounds), shown, limits)
    parquet = ParquetFile(file, read_dictionary=[OP_TYPE], **bounds)
    rows = parquet.metadata.num_rows
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names if name != OP_TYPE}
    op_types: list[Int8s] = []
    unknown: Counter[str] = Counter()
    read = 0
    for batch in parquet.iter_batches(batch_size=BATCH_ROWS, columns=names):
        read += batch.num_rows
        if read > rows:
            raise OpTableError(f"Op table {shown} holds more rows than the {rows} that its directory gives")
        for name in names:
            column = batch.column(name)
            if column.null_count:
                raise OpTableError(f"Op table {shown}: column {name} has {column.null_count} missing values")
            if name == OP_TYPE:
                op_types.append(_codes(column, shown, unknown))
            else:
                parts[name].append(column.to_numpy(zero_copy_only=False))
    warnings = [
        f"left out: {plural(count, 'operation')} of the unknown type {kind}" for kind, count in unknown.most_common(5)
    ]
    columns = {name: np.concatenate(values) for name, values in parts.items()}
    return checked_table(shown, columns, np.concatenate(op_types), limits=limits, warnings=warnings)


def _columns(parquet: ParquetFile, shown: str, limits: Limits) -> list[str]:
    """The columns to read, after a look into the file's directory only."""
    metadata = parquet.metadata
    present = set(parquet.schema_arrow.names)
    missing = [name for name in REQUIRED if name not in present]
    if missing:
        raise OpTableError(f"Op table {shown} has no column {', '.join(missing)}; needed: {', '.join(REQUIRED)}")
    if not metadata.num_rows:
        raise OpTableError(f"Op table {shown} has no rows")
    if metadata.num_rows > limits.rows:
        raise OpTableError(
            f"Op table {shown} has {metadata.num_rows} rows; at most {limits.rows} are read, so give fewer steps"
        )
    # Nothing more is asked about single columns: pyarrow ends the process on some damaged ones.
    size = sum(max(metadata.row_group(number).total_byte_size, 0) for number in range(metadata.num_row_groups))
    if size > limits.uncompressed_bytes:
        raise OpTableError(
            f"Op table {shown} unpacks to {format_bytes(size)}; at most {format_bytes(limits.uncompressed_bytes)} are "
            "read, so give fewer steps"
        )
    return [*REQUIRED, *(name for name in OPTIONAL if name in present)]


def _codes(column: Any, shown: str, unknown: Counter[str]) -> Int8s:
    """`OpType` codes of a dictionary-encoded text column; -1 and a count in `unknown` for other names."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        raise OpTableError(f"Op table {shown}: column {OP_TYPE} holds {column.type}; expected text")
    if len(column.dictionary) > MOST_TYPES:
        raise OpTableError(f"Op table {shown}: column {OP_TYPE} has {len(column.dictionary)} names; expected op types")
    names = column.dictionary.to_pylist()
    codes = np.array([BY_LABEL.get(name, -1) for name in names], dtype=np.int8)
    rows = column.indices.to_numpy(zero_copy_only=False)
    counts = np.bincount(rows, minlength=len(names))
    for index in np.flatnonzero((codes < 0) & (counts > 0)):
        unknown[clean(str(names[index]), 60)] += int(counts[index])
    found: Int8s = codes[rows]
    return found
