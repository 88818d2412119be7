"""The tables of a trace: frozen records of equally long numpy arrays, one row per event, sorted by start."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]
Int8s = NDArray[np.int8]
Bools = NDArray[np.bool_]


class EventKind(IntEnum):
    """What a device did during an event."""

    KERNEL = 0
    COPY = 1
    SET = 2
    COLLECTIVE = 3


class Evidence(IntEnum):
    """Why a device event counts as a collective; the strongest that there is."""

    NONE = 0
    """It does not."""
    NAME = 1
    """Its name is on our list; the trace says nothing more, so it is inferred."""
    LINK = 2
    """An operator that the trace calls a collective launched it itself."""
    ARGUMENTS = 3
    """It carries the arguments of a collective."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Rows in order of start; of two that start together the longer one (the enclosing one) comes first.

    Times are int64 nanoseconds since the epoch (since an unknown zero where the trace does not say).
    """

    start_ns: Int64s
    end_ns: Int64s

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def dur_ns(self) -> Int64s:
        """How long each row took."""
        return self.end_ns - self.start_ns

    def take(self, rows: NDArray[Any]) -> Self:
        """The same table with only these rows (a boolean mask or row numbers, in the order given).

        Rows that follow one another are not copied: both tables then share their memory.
        """
        numbers: NDArray[Any] = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        chosen: NDArray[Any] | slice = numbers
        if len(numbers) and numbers[-1] - numbers[0] == len(numbers) - 1 and bool((np.diff(numbers) == 1).all()):
            chosen = slice(int(numbers[0]), int(numbers[-1]) + 1)
        return type(self)(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})

    def overlapping(self, start_ns: int, end_ns: int) -> Self:
        """The rows that share time with [start_ns, end_ns)."""
        stop = int(np.searchsorted(self.start_ns, end_ns, side="left"))
        rows = np.flatnonzero(self.end_ns[:stop] > start_ns)
        return self.take(rows)


@dataclass(frozen=True, slots=True, eq=False)
class HostOps(Table):
    """Operators that ran on the host (`aten::add`, autograd nodes)."""

    name: Int32s
    tid: Int32s
    """Row in `Trace.threads`."""
    pid: Int64s
    external_id: Int64s
    """Links to launches and device events; -1 where missing."""
    seq: Int64s
    """Autograd sequence number that forward and backward share; -1 where missing."""
    shapes: Int32s
    """Row in `Trace.shapes`; -1 where shapes were not recorded."""


@dataclass(frozen=True, slots=True, eq=False)
class Annotations(Table):
    """Ranges named by user code or torch (`ProfilerStep#3`, `Optimizer.step#SGD.step`, `enumerate(DataLoader)#…`)."""

    name: Int32s
    tid: Int32s
    """Row in `Trace.threads`; for annotations on a device the pair (device, stream)."""
    external_id: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class Frames(Table):
    """Python function calls (`file.py(12): forward`, `nn.Module: Linear_0`, `<built-in …>`)."""

    name: Int32s
    tid: Int32s
    python_id: Int64s
    """The call's own number; -1 where missing."""
    parent_id: Int64s
    """`python_id` of the caller; -1 for an outermost frame."""


@dataclass(frozen=True, slots=True, eq=False)
class Launches(Table):
    """Calls into the device's driver or runtime (`cudaLaunchKernel`, `hipMemcpyAsync`, `cudaStreamSynchronize`)."""

    name: Int32s
    tid: Int32s
    correlation: Int64s
    """Links to the device events that the call started; -1 where missing."""
    external_id: Int64s
    kernel: Int32s
    """Name number of the kernel that a call launches, which HIP's calls say; -1 where not recorded."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceEvents(Table):
    """What the device did: kernels, copies, sets and collectives."""

    name: Int32s
    device: Int32s
    stream: Int64s
    correlation: Int64s
    external_id: Int64s
    kind: Int8s
    """An `EventKind`."""
    evidence: Int8s
    """An `Evidence`, of a collective."""
    bytes: Int64s
    """Of a copy or set; -1 where not recorded."""
    transfer_ns: Int64s
    """How long a copy or set took by the bandwidth that the profiler recorded for it; -1 where it recorded none.
    In a trace of whole microseconds this alone still holds the nanoseconds."""
    blocks: Int64s
    """Thread blocks of a kernel (the product of its grid); -1 where not recorded."""
    launch: Int64s
    """Row in `Trace.launches` of the call that started this; -1 where the trace does not hold it."""


@dataclass(frozen=True, slots=True, eq=False)
class Syncs(Table):
    """Device-side waits as CUPTI saw them (`cuda_sync`, `cuda_event`)."""

    name: Int32s
    device: Int32s
    stream: Int64s
    """That waits; -1 where the host waits."""
    correlation: Int64s
    wait_stream: Int64s
    """On which the awaited event was recorded; -1 where missing."""
    wait_record: Int64s
    """Correlation of the call that recorded the awaited event; -1 where missing."""


@dataclass(frozen=True, slots=True, eq=False)
class MemoryEvents(Table):
    """Allocations (bytes > 0) and frees (bytes < 0); instants, so `end_ns` equals `start_ns`."""

    tid: Int32s
    device: Int32s
    """Device number; -1 for host memory."""
    address: Int64s
    bytes: Int64s
    allocated: Int64s
    """Bytes allocated on the device after the event; -1 where missing."""
    reserved: Int64s
    """Bytes that the caching allocator holds after the event; -1 where missing."""


@dataclass(frozen=True, slots=True, eq=False)
class Overheads(Table):
    """Time that the profiler itself took on a thread."""

    name: Int32s
    tid: Int32s


@dataclass(frozen=True, slots=True, eq=False)
class Links(Table):
    """Arrows that the trace draws (forward → backward): from (start_ns, tid) to (end_ns, to_tid)."""

    name: Int32s
    tid: Int32s
    to_tid: Int32s


@dataclass(frozen=True, slots=True, eq=False)
class Collectives(Table):
    """What the trace says about collective operations, one row per event that carries such arguments."""

    name: Int32s
    """Of the collective (`allreduce`), not of the kernel."""
    row: Int64s
    """Row in `Trace.device_events` where `on_device`, else in `Trace.host_ops`."""
    on_device: Bools
    seq: Int64s
    """Number of the collective within its group; -1 where missing."""
    group: Int32s
    """Name number of the process group; -1 where missing."""
    group_size: Int64s
    dtype: Int32s
    """Name number of the element type; -1 where missing."""
    in_elements: Int64s
    out_elements: Int64s


_DTYPES = {"Int64s": np.int64, "Int32s": np.int32, "Int8s": np.int8, "Bools": np.bool_}


def blank_columns(table: type[Table], rows: int = 0) -> dict[str, NDArray[Any]]:
    """Columns of a table in which nothing is known yet: -1, of truth values False."""
    kinds = {column.name: _DTYPES[str(column.type)] for column in fields(table)}
    return {name: np.full(rows, 0 if kind is np.bool_ else -1, dtype=kind) for name, kind in kinds.items()}
