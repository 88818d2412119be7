"""The events of Kineto's JSON as structs, one per category, that name only the fields which our tables hold.

The decoder skips what is not named, and small structs are made and filled sooner than one with every field. Times are
kept as text, for a float would lose nanoseconds; files of whole microseconds have their own structs, with integers.
"""

from __future__ import annotations

import re
from typing import Any, Literal, get_type_hints

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

Number = int | str | None
NO_TIME = Raw(b"")
NO_WHOLE_TIME = -(2**63)

HOST_OPS, ANNOTATIONS, DEVICE_ANNOTATIONS, FRAMES, LAUNCHES, KERNELS, COPIES, SETS, SYNCS, OVERHEADS, NOTHING = range(
    11
)
OPS_AND_ANNOTATIONS = NOTHING + 1
"""Host operators and annotations under one category; see `is_annotation`."""

TABLE_OF = {
    "cpu_op": HOST_OPS,
    "user_annotation": ANNOTATIONS,
    "gpu_user_annotation": DEVICE_ANNOTATIONS,
    "python_function": FRAMES,
    "cuda_runtime": LAUNCHES,
    "cuda_driver": LAUNCHES,
    "mtia_runtime": LAUNCHES,
    "glow_runtime": LAUNCHES,
    "xpu_runtime": LAUNCHES,
    "xpu_driver": LAUNCHES,
    "privateuse1_runtime": LAUNCHES,
    "privateuse1_driver": LAUNCHES,
    "kernel": KERNELS,
    "concurrent_kernel": KERNELS,
    "mtia_ccp_events": KERNELS,
    "hpu_op": KERNELS,
    "gpu_memcpy": COPIES,
    "gpu_memset": SETS,
    "cuda_sync": SYNCS,
    "cuda_event": SYNCS,
    "overhead": OVERHEADS,
    "Trace": NOTHING,
    "mtia_counters": NOTHING,
    "mtia_insight": NOTHING,
    "cuda_profiler_range": NOTHING,
    "gpu_pm_counter": NOTHING,
    "collective_comm": NOTHING,
    # The oldest exporters (PyTorch 1.8).
    "Operator": OPS_AND_ANNOTATIONS,
    "Runtime": LAUNCHES,
    "Kernel": KERNELS,
    "Memcpy": COPIES,
    "Memset": SETS,
}
"""Kineto's categories (ActivityType.cpp) and the table that each goes to."""

LAUNCH_FLOWS = ("ac2g", "async_cpu_to_gpu", "async_gpu", "async", "critical_path")
"""Arrows that say what the correlation says already, or that other analysers drew."""
FORWARD_BACKWARD = "fwdbwd"
"""Arrows from an operator to what autograd runs for it."""
ALLOCATIONS = "cpu_instant_event"

_OPERATOR = re.compile(r"[^\W\d]\w*|.*::.*", re.DOTALL)


def is_annotation(name: str) -> bool:
    """Whether an event of the category `Operator` is an annotation; only its name tells.

    Operators and autograd nodes are identifiers (`ReluBackward1`) or qualified (`aten::mm`). Annotations of torch are
    neither (`ProfilerStep#5`, `enumerate(DataLoader)#…`, `nccl:all_reduce`); one of a user that is just a word looks
    like an operator.
    """
    return _OPERATOR.fullmatch(name) is None


class Args(Struct, gc=False, frozen=True):
    """All that a table may need of the `args` of an event; the structs of the categories have a part of it each."""

    external_id: Number = field(name="External id", default=-1)
    correlation: Number = -1
    sequence: Number = field(name="Sequence number", default=-1)
    stream: Number = -1
    device: Number = -1
    bytes: Number = -1
    bandwidth: Raw | UnsetType = field(name="memory bandwidth (GB/s)", default=UNSET)
    grid: Raw | UnsetType = UNSET
    python_id: Number = field(name="Python id", default=-1)
    python_parent_id: Number = field(name="Python parent id", default=-1)
    size: Number = -1
    kernel: Number = None
    wait_stream: Number = field(name="wait_on_stream", default=-1)
    wait_record: Number = field(name="wait_on_cuda_event_record_corr_id", default=-1)
    dims: Raw | UnsetType = field(name="Input Dims", default=UNSET)
    types: Raw | UnsetType = field(name="Input type", default=UNSET)
    collective: Number = field(name="Collective name", default=None)
    group: Number = field(name="Process Group Name", default=None)
    group_size: Number = field(name="Group size", default=-1)
    collective_seq: Number = field(name="Seq", default=-1)
    dtype: Number = None
    in_elements: Number = field(name="In msg nelems", default=-1)
    out_elements: Number = field(name="Out msg nelems", default=-1)
    old_external_id: Number = field(name="external id", default=-1)
    old_dims: Raw | UnsetType = field(name="Input dims", default=UNSET)


_EXTERNAL = "external_id", "old_external_id"
_COLLECTIVE = "collective", "group", "group_size", "collective_seq", "dtype", "in_elements", "out_elements"
_ON_DEVICE = "device", "stream", "correlation"
_MOVED = *_ON_DEVICE, *_EXTERNAL, "bytes", "size", "bandwidth", "grid"
ARGS_OF: dict[int, tuple[str, ...]] = {
    HOST_OPS: (*_EXTERNAL, "sequence", "dims", "types", "old_dims", *_COLLECTIVE),
    ANNOTATIONS: _EXTERNAL,
    DEVICE_ANNOTATIONS: _EXTERNAL,
    FRAMES: ("python_id", "python_parent_id"),
    LAUNCHES: ("correlation", *_EXTERNAL, "kernel"),
    KERNELS: (*_ON_DEVICE, *_EXTERNAL, "bytes", "size", "grid", *_COLLECTIVE),
    COPIES: _MOVED,
    SETS: _MOVED,
    SYNCS: (*_ON_DEVICE, "wait_stream", "wait_record"),
    OVERHEADS: (),
}
ARGS_OF[OPS_AND_ANNOTATIONS] = ARGS_OF[HOST_OPS]


class AllocationArgs(Struct, gc=False, frozen=True):
    """The `args` of a memory event."""

    address: Number = field(name="Addr", default=-1)
    bytes: Number = field(name="Bytes", default=None)
    device_type: Number = field(name="Device Type", default=0)
    device_id: Number = field(name="Device Id", default=-1)
    allocated: Number = field(name="Total Allocated", default=-1)
    reserved: Number = field(name="Total Reserved", default=-1)


class Arrow(Struct, gc=False):
    """The tail or the head of an arrow of a category that we do not know."""

    cat: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: Raw = NO_TIME
    id: Number = -1


class ArrowTail(Arrow, tag_field="ph", tag="s"):
    """Where it starts."""


class ArrowHead(Arrow, tag_field="ph", tag="f"):
    """Where it ends."""


class LabelArgs(Struct, gc=False, frozen=True):
    """The `args` of an event that names a process or a thread."""

    name: str | int | float | None = None
    labels: str | int | float | None = None


class Label(Struct, gc=False, tag_field="ph", tag="M"):
    """Names a process or a thread."""

    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    args: LabelArgs = LabelArgs()


class Uncategorised(Struct, gc=False, tag_field="ph", tag="X"):
    """Something with a start and a duration, of a category that we do not know."""

    cat: str = ""


class Unplaced(Struct, gc=False, tag_field="ph", tag="?"):
    """An event of a phase that no table holds, or none at all."""

    cat: str = ""


class Moment(Unplaced, tag_field="ph", tag="i"):
    """A mark of the profiler, without duration."""


class Complete(Struct, gc=False):
    """Something with a start and a duration, of a category that we know."""

    ph: Literal["X"]
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1


class Allocation(Struct, gc=False):
    """A moment at which memory was taken or given back; without `Bytes` it is a mark of the profiler."""

    ph: Literal["i"]
    pid: int | str = -1
    tid: int | str = -1
    args: AllocationArgs = AllocationArgs()


class AutogradArrow(Struct, gc=False):
    """The tail (`s`) or the head (`f`) of an arrow from forward to backward."""

    ph: Literal["s", "f", "t"]
    pid: int | str = -1
    tid: int | str = -1
    id: Number = -1


_HINTS = get_type_hints(Args)
_FIELDS = {
    entry.name: (entry.name, _HINTS[entry.name], field(name=entry.encode_name, default=entry.default))
    for entry in msgspec.structs.fields(Args)
}


def _args(table: int) -> list[Any]:
    """The field `args` as the events of a table have it, if they need one."""
    if table not in ARGS_OF:
        return []
    args: Any = msgspec.defstruct(f"Args_{table}", [_FIELDS[name] for name in ARGS_OF[table]], gc=False, frozen=True)
    return [("args", args, args())]


ARGS = {table: _args(table) for table in set(TABLE_OF.values())}
TABLE_OF_KIND: dict[type, int] = {}
"""The table that the complete events of each kind go to."""


def _kinds(time: Any, missing: Any) -> tuple[type, ...]:
    """A struct for each category that we know, its times of type `time`."""
    ts, dur = ("ts", time, missing), ("dur", time, missing)

    def kind(base: type[Struct], category: str, *fields: Any) -> Any:
        name = f"{base.__name__}_{category}"
        return msgspec.defstruct(name, fields, bases=(base,), gc=False, tag_field="cat", tag=category)

    complete = {kind(Complete, category, ts, dur, *ARGS[table]): table for category, table in TABLE_OF.items()}
    TABLE_OF_KIND.update(complete)
    return *complete, kind(Allocation, ALLOCATIONS, ts), kind(AutogradArrow, FORWARD_BACKWARD, ts)


WITH_TEXT, WITH_INTEGERS = _kinds(Raw, NO_TIME), _kinds(int, NO_WHOLE_TIME)
PASSED_OVER = tuple(
    msgspec.defstruct(f"Flow_{category}", [], gc=False, tag_field="cat", tag=category) for category in LAUNCH_FLOWS
)
_COUNTED = "BEIbenSTpFtCNODPRcvV(),="
"""The other phases of the format that Kineto's JSON borrows; they only have to be counted."""
OTHER_PHASES = tuple(
    msgspec.defstruct(f"Phase_{ord(phase)}", [], tag_field="ph", tag=phase, gc=False, bases=(Unplaced,))
    for phase in _COUNTED
)
PHASES = frozenset("XsfMi" + _COUNTED)

Event = Struct
"""One of those above."""
