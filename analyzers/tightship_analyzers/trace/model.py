"""The canonical trace: what every reader produces and every analysis starts from.

Times are int64 nanoseconds since the epoch, names and threads are interned, tables are columns sorted by start.
Nothing here knows a file format, and nothing here judges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tightship_analyzers.trace.columns import (
    Annotations,
    Bools,
    Collectives,
    DeviceEvents,
    EventKind,
    Frames,
    HostOps,
    Int8s,
    Int32s,
    Int64s,
    Launches,
    Links,
    MemoryEvents,
    Overheads,
    Syncs,
    Table,
)
from tightship_analyzers.trace.names import Names

__all__ = [
    "NO_NAME",
    "Annotations",
    "Bools",
    "Captured",
    "CapturedCall",
    "Collectives",
    "DeviceEvents",
    "EventKind",
    "Frames",
    "HostOps",
    "Int8s",
    "Int32s",
    "Int64s",
    "Launches",
    "Links",
    "MemoryEvents",
    "Names",
    "Overheads",
    "Shapes",
    "Syncs",
    "Table",
    "Thread",
    "Trace",
]


NO_NAME = "unknown device"
"""Model of a device whose trace gives it no name."""


class Thread(NamedTuple):
    """One thread of the traced process, or one stream of a device."""

    pid: int
    tid: int
    name: str
    """As the trace names it; empty where it does not."""


class Shapes(NamedTuple):
    """The recorded inputs of an operator, each one JSON text without white space, empty where not recorded."""

    dims: str
    """`[[8,32],[],[]]`: one list of sizes per input."""
    types: str
    """`["float","Scalar",""]`: one element type per input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProperties:
    """What a device says of itself (`deviceProperties`); None: it does not say."""

    units: int | None = None
    """Streaming multiprocessors or compute units."""
    memory_bytes: int | None = None
    major: int | None = None
    """Of the compute capability; of the LLVM target on AMD (9 of `gfx942`)."""
    minor: int | None = None
    warp: int | None = None
    """Threads that run in lockstep."""


class CapturedCall(NamedTuple):
    """A kernel as the capture of its graph shows it."""

    op: str
    """The innermost operator around its launch; empty where there is none."""
    inputs: Shapes
    """Of that operator; empty texts where not recorded."""
    op_kernels: int
    """Kernels that one call of the operator launches."""
    touched: tuple[Shapes, ...]
    """Inputs of the operators that its thread began since the launch before, the last one last: code that launches
    kernels by itself, such as Triton's, makes views of what it hands over."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Captured:
    """What captures of graphs tell of the kernels that the trace replays."""

    row: Int64s
    """(kernels,) rows in `Trace.device_events`, ascending."""
    call: Int64s
    """(kernels,) rows in `calls`."""
    calls: tuple[CapturedCall, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """One rank's recording."""

    source: str
    """Where it was read from."""
    device_name: str
    """Model of the device as it reports it, `NO_NAME` where it does not; `cpu` where the trace has no device."""
    device_kind: Literal["gpu", "cpu"]
    """`cpu`: no accelerator was used, so the operators themselves are the device timeline."""
    rank: int | None
    world_size: int | None
    distributed: Mapping[str, object]
    """`distributedInfo` as the trace gives it."""
    base_ns: int
    """What was added to the file's times; 0 where they were absolute already or no base is known."""
    start_ns: int
    """Start of the first event."""
    end_ns: int
    """End of the last event."""
    cut_off: bool = False
    """The list of events ends early; what the profiler writes last is missing."""
    covered_end_ns: int | None = None
    """Until here the device's events were recorded; None: to the end. `start_ns` where there are none of a device that
    was used."""
    trace_id: str
    """The id that a capture request asked for; empty where the trace has none."""
    events: int
    """Events in the file, of all sorts."""
    warnings: list[str]
    """What was wrong with the file, one line each; empty for a whole and plausible one."""

    names: Names
    threads: tuple[Thread, ...]
    shapes: tuple[Shapes, ...]
    device_properties: DeviceProperties = DeviceProperties()
    """Of the device that had most events."""
    properties: Mapping[str, object] = field(default_factory=dict)
    """The other top-level entries of the file (`deviceProperties`, `with_stack`, `host_name`, …)."""

    host_ops: HostOps
    annotations: Annotations
    device_annotations: Annotations
    frames: Frames
    launches: Launches
    device_events: DeviceEvents
    syncs: Syncs
    memory_events: MemoryEvents
    overheads: Overheads
    links: Links
    collectives: Collectives
    captured: Captured | None = None
    """None where no capture of its graphs was given with it."""

    @property
    def span_ns(self) -> int:
        """From the first event's start to the last event's end."""
        return self.end_ns - self.start_ns

    @property
    def covered_frac(self) -> float | None:
        """Share of `span_ns` that the device's events cover; None where a cut-off file does not tell."""
        if self.covered_end_ns is not None:
            return min(1.0, (self.covered_end_ns - self.start_ns) / (self.span_ns or 1))
        return None if self.cut_off else 1.0

    def annotations_named(self, prefix: str) -> Annotations:
        """The host annotations whose name starts with `prefix`, such as `ProfilerStep#` or `Optimizer.step#`."""
        return self.annotations.take(self.names.mask(self.annotations.name, lambda text: text.startswith(prefix)))

    def ops_named(self, prefix: str) -> HostOps:
        """The host operators whose name starts with `prefix`, such as `aten::item`."""
        return self.host_ops.take(self.names.mask(self.host_ops.name, lambda text: text.startswith(prefix)))
