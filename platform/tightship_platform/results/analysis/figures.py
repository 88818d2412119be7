"""Figures of one rank: where device and host spent their time, by step, stream, kernel, call and place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Durations:
    """Statistics of durations, ns."""

    count: int
    sum_ns: int
    min_ns: int
    max_ns: int
    mean_ns: float
    std_ns: float


@dataclass(frozen=True, kw_only=True)
class StepFigures:
    """One whole step."""

    step: int
    """Counted from 0 in the trace."""
    name: str
    """The mark in the program, such as `ProfilerStep#12`."""
    start_ns: int
    end_ns: int
    duration_ns: int
    device_busy_ns: int | None
    launched: int | None
    """Device events that the host launched within the step."""
    device_work_ns: int | None
    """Their durations."""
    idle_causes: dict[str, int] | None
    """Cause → ns of the device's idle time."""
    exposed_causes: dict[str, int] | None
    """Cause → ns of communication that nothing hid."""


@dataclass(frozen=True, kw_only=True)
class Temporal:
    """The device from its first event to its last."""

    kernel_span_ns: int
    idle_ns: int
    compute_ns: int
    non_compute_ns: int
    """Communication and copies while nothing computed."""


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """How much of the communication computation hid."""

    comm_ns: int
    overlapped_ns: int
    frac: float | None


@dataclass(frozen=True, kw_only=True)
class DeviceTime:
    """The device's time under one way of telling communication from computation."""

    temporal: Temporal | None
    overlap: Overlap | None


@dataclass(frozen=True, kw_only=True)
class StreamIdle:
    """Idle time of one stream between its events."""

    device: int
    stream: int
    events: int
    unlinked: int
    """Events whose launch is not in the file."""
    host_wait_ns: int
    kernel_wait_ns: int
    other_ns: int


@dataclass(frozen=True, kw_only=True)
class CausedTime:
    """Time with one cause at one place."""

    cause: str
    place: str | None
    frame: str | None
    """Python frame of the user's own code."""
    operator: str | None
    module: str | None
    ns: int


@dataclass(frozen=True, kw_only=True)
class KernelFigures:
    """All device events of one name."""

    name: str
    type: str
    """`compute`, `communication` or `memory`."""
    count: int
    unlinked: int
    sum_ns: int
    min_ns: int
    max_ns: int
    mean_ns: float
    std_ns: float


@dataclass(frozen=True, kw_only=True)
class MemoryFigures:
    """What the allocator held on one device, where allocations were recorded."""

    device: int
    """Device number; -1 for host memory."""
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    peak_ns: int | None
    capacity_bytes: int | None
    peak_frac: float | None
    is_relative: bool
    """Bytes count from the start of the recording."""
    allocations: int
    frees: int
    churn_bytes: int
    growth_bytes: int


@dataclass(frozen=True, kw_only=True)
class QueueFigures:
    """Operations that waited in one stream's queue."""

    device: int
    stream: int
    unlinked: int
    mean: float
    p50: float
    p75: float
    max: float
    area_ns: int
    """Operations times the time they waited."""
    full_ns: int


@dataclass(frozen=True, kw_only=True)
class CallFigures:
    """One runtime call that launches work."""

    call: str
    host: Durations
    device: Durations
    delay: Durations


@dataclass(frozen=True, kw_only=True)
class LaunchFigures:
    """Launches: what the calls cost the host, and how long their work waited."""

    host: Durations
    device: Durations
    delay: Durations
    short_events: int
    shorter_than_call: int
    long_calls: int
    long_delays: int
    unlinked: int
    by_call: list[CallFigures]


@dataclass(frozen=True, kw_only=True)
class CopyFigures:
    """Copies, or fills, of one type."""

    type: str
    count: int
    sum_ns: int
    min_ns: int
    max_ns: int
    mean_ns: float
    std_ns: float
    busy_ns: int
    bytes: int | None
    unsized: int
    """Those whose size the trace does not tell."""
    pageable: int
    gbps: float | None
    max_gbps: float | None


@dataclass(frozen=True, kw_only=True)
class AnnotationFigures:
    """A range that the program or torch named."""

    name: str
    host: Durations
    device: Durations
    device_work_ns: int


@dataclass(frozen=True, kw_only=True)
class SequenceFigures:
    """Kernels that an operator launches again and again."""

    operator: str
    kernels: list[str]
    length: int
    count: int
    device_ns: int
    host_ns: int


@dataclass(frozen=True, kw_only=True)
class NamedTime:
    """Time by name."""

    name: str
    ns: int


@dataclass(frozen=True, kw_only=True)
class CriticalPath:
    """What one step waited for from its end back to its start; `by_part_ns` sums to the step."""

    by_part_ns: dict[str, int]
    device_events: list[NamedTime]
    """The costliest."""
    operators: list[NamedTime]


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """How well the dependency graph, run unchanged, gives the measured steps."""

    steps_error_frac: list[float]
    drift_frac: float
    unexplained_ns: int
    without_launch_frac: float
    distrust: str | None
    """Why no saving rests on it; null where savings do."""


@dataclass(frozen=True, kw_only=True)
class RooflineFamily:
    """Kernels of one family and element type against the device's roof."""

    family: str
    dtype: str | None
    calls: int
    kernels: int
    device_ns: int
    flops: int
    bytes: int
    achieved_flops_per_s: float
    attainable_flops_per_s: float
    peak_flops_per_s: float | None
    achieved_bytes_per_s: float
    memory_bound_ns: int
    least_ns: int
    """No device of this model can be faster."""
    roof_frac: float
    """`least_ns` over `device_ns`."""


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """The window's work against the device's roof."""

    device: str
    """Id in the table of devices."""
    mfu_frac: float | None
    window_ns: int
    devices: int
    kernel_ns: int
    known_ns: int
    """Of `kernel_ns`, kernels whose FLOPs and bytes are known."""
    families: list[RooflineFamily]


@dataclass(frozen=True, kw_only=True)
class FusionCandidate:
    """Memory-bound kernels in a row that one kernel could replace."""

    module: str
    modules: int
    ops: list[str]
    length: int
    chains: int
    device_ns: int
    saving_ns: int
    """Upper bound."""


@dataclass(frozen=True, kw_only=True)
class FactCost:
    """What it took to derive one fact, and who used it."""

    fact: str
    self_ns: int
    """Wall time without that of the facts that it needed itself."""
    used_by: list[str]
    """Rules and facts; `(direct)`: the report itself."""
    missing: str | None
    """Why there is none; null where it was derived."""
