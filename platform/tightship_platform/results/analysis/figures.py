"""Figures of one rank: where device and host spent their time, by step, stream, kernel, call and place."""

from __future__ import annotations

from dataclasses import dataclass

MOST_PLACES = 50
"""Places of each cause; the others are summed in one row without a place."""


@dataclass(frozen=True, kw_only=True)
class Durations:
    """Statistics of durations, ns."""

    count: int
    """How many durations."""
    sum_ns: int
    """Their sum."""
    min_ns: int
    """The shortest."""
    max_ns: int
    """The longest."""
    mean_ns: float
    """Their mean."""
    std_ns: float
    """Their standard deviation."""


@dataclass(frozen=True, kw_only=True)
class StepFigures:
    """One whole step."""

    step: int
    """Counted from 0 in the trace."""
    name: str
    """The mark in the program, such as `ProfilerStep#12`."""
    start_ns: int
    """Its start in the trace's time."""
    end_ns: int
    """Its end."""
    duration_ns: int
    """Its length."""
    device_busy_ns: int | None
    """Time in which the device ran anything; null without device events."""
    launched: int | None
    """Device events that the host launched within the step."""
    device_work_ns: int | None
    """Their durations."""
    idle_causes: dict[str, int] | None
    """Cause → ns of the device's idle time."""
    exposed_causes: dict[str, int] | None
    """Cause → ns of exposed communication."""


@dataclass(frozen=True, kw_only=True)
class Temporal:
    """The device from its first event to its last."""

    kernel_span_ns: int
    """From the start of the first event to the end of the last."""
    idle_ns: int
    """Nothing ran."""
    compute_ns: int
    """Something computed."""
    non_compute_ns: int
    """Communication and copies while nothing computed."""


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """How much of the communication computation hid."""

    comm_ns: int
    """Time in which communication ran."""
    overlapped_ns: int
    """Of that, time in which something computed as well."""
    frac: float | None
    """`overlapped_ns` over `comm_ns`; null without communication."""


@dataclass(frozen=True, kw_only=True)
class DeviceTime:
    """The device's time under one way of telling communication from computation."""

    temporal: Temporal | None
    """Busy and idle time; null without device events."""
    overlap: Overlap | None
    """Communication and what hid it; null without device events."""


@dataclass(frozen=True, kw_only=True)
class StreamIdle:
    """Idle time of one stream between its events."""

    device: int
    """Device number."""
    stream: int
    """Stream number."""
    events: int
    """Events on it."""
    unlinked: int
    """Events whose launch is not in the file."""
    host_wait_ns: int
    """The next work was not launched yet."""
    kernel_wait_ns: int
    """The next work was launched, and took a moment to start."""
    other_ns: int
    """Otherwise, such as waiting for another stream."""


@dataclass(frozen=True, kw_only=True)
class CausedTime:
    """Time with one cause at one place."""

    cause: str
    """Why, such as `host_sync`; the causes are listed in docs/idle.md."""
    place: str | None
    """Where in the program; null: no place is recorded, or smaller places together."""
    frame: str | None
    """Python frame of the user's own code."""
    operator: str | None
    """Operator that was running there."""
    module: str | None
    """Module that was running there."""
    ns: int
    """The time."""


@dataclass(frozen=True, kw_only=True)
class KernelFigures:
    """All device events of one name."""

    name: str
    """Name of the kernel, copy or set."""
    type: str
    """`compute`, `communication` or `memory`."""
    count: int
    """How many."""
    unlinked: int
    """Those whose launch is not in the file."""
    sum_ns: int
    """Sum of their durations."""
    min_ns: int
    """The shortest."""
    max_ns: int
    """The longest."""
    mean_ns: float
    """Mean duration."""
    std_ns: float
    """Standard deviation of the durations."""


@dataclass(frozen=True, kw_only=True)
class MemoryFigures:
    """What the allocator held on one device, where allocations were recorded."""

    device: int
    """Device number; -1 for host memory."""
    peak_allocated_bytes: int | None
    """The most that tensors held."""
    peak_reserved_bytes: int | None
    """The most that the caching allocator held."""
    peak_ns: int | None
    """When tensors first held the most."""
    capacity_bytes: int | None
    """What the device has; null where not recorded."""
    peak_frac: float | None
    """The peak as a share of the capacity."""
    is_relative: bool
    """Bytes count from the start of the recording."""
    allocations: int
    """Allocations recorded."""
    frees: int
    """Frees recorded."""
    churn_bytes: int
    """Sum of all allocations."""
    growth_bytes: int
    """What tensors held at the end, less what they held at the start."""


@dataclass(frozen=True, kw_only=True)
class QueueFigures:
    """Operations that waited in one stream's queue."""

    device: int
    """Device number."""
    stream: int
    """Stream number."""
    unlinked: int
    """Events left out, because their launch is not in the file."""
    mean: float
    """Mean length at the moments of change."""
    p50: float
    """Median length."""
    p75: float
    """Length that a quarter of the moments exceed."""
    max: float
    """Greatest length."""
    area_ns: int
    """Operations times the time they waited."""
    full_ns: int
    """Time in which the queue was full, so that launches block the host."""


@dataclass(frozen=True, kw_only=True)
class CallFigures:
    """One runtime call that launches work."""

    call: str
    """Name of the call, such as `cudaLaunchKernel`."""
    host: Durations
    """The calls."""
    device: Durations
    """The device events that they launched."""
    delay: Durations
    """From the end of each call to the start of its first event."""


@dataclass(frozen=True, kw_only=True)
class LaunchFigures:
    """Launches: what the calls cost the host, and how long their work waited."""

    host: Durations
    """All calls that launch."""
    device: Durations
    """The events that they launched."""
    delay: Durations
    """From the end of each call to the start of its first event."""
    short_events: int
    """Device events of at most 10 µs."""
    shorter_than_call: int
    """Calls of which all that they launched took less time than the call itself."""
    long_calls: int
    """Calls longer than 50 µs."""
    long_delays: int
    """Delays longer than 100 µs."""
    unlinked: int
    """Device events whose launch is not in the file."""
    by_call: list[CallFigures]
    """The same for each runtime call."""


@dataclass(frozen=True, kw_only=True)
class CopyFigures:
    """Copies, or fills, of one type."""

    type: str
    """`Memcpy HtoD`, `Memset` and so on."""
    count: int
    """How many."""
    sum_ns: int
    """Sum of their durations."""
    min_ns: int
    """The shortest."""
    max_ns: int
    """The longest."""
    mean_ns: float
    """Mean duration."""
    std_ns: float
    """Standard deviation of the durations."""
    busy_ns: int
    """Time in which at least one of them ran."""
    bytes: int | None
    """Moved in all; null where no size is recorded."""
    unsized: int
    """Those whose size the trace does not tell."""
    pageable: int
    """Those from or to pageable host memory."""
    gbps: float | None
    """Bytes over the time that moving them took, GB/s; null where no size is recorded."""
    max_gbps: float | None
    """The highest rate of all of them together, GB/s."""


@dataclass(frozen=True, kw_only=True)
class AnnotationFigures:
    """A range that the program or torch named."""

    name: str
    """Name of the range."""
    host: Durations
    """Its ranges on host threads."""
    device: Durations
    """Their spans on the device, from the first to the last event launched within."""
    device_work_ns: int
    """Durations of the device events launched within."""


@dataclass(frozen=True, kw_only=True)
class SequenceFigures:
    """Kernels that an operator launches again and again."""

    operator: str
    """The operator."""
    kernels: list[str]
    """Names of the kernels in order."""
    length: int
    """How many kernels."""
    count: int
    """How often the sequence was launched."""
    device_ns: int
    """Its device time in all."""
    host_ns: int
    """Host time of the operator's calls."""


@dataclass(frozen=True, kw_only=True)
class NamedTime:
    """Time by name."""

    name: str
    """Name of the kernel or operator."""
    ns: int
    """Its time."""


@dataclass(frozen=True, kw_only=True)
class CriticalPath:
    """What one step waited for from its end back to its start; `by_part_ns` sums to the step."""

    by_part_ns: dict[str, int]
    """Part (`host`, `kernel`, `copy`, `collective`, `launch_latency`, `stream_gap`, `sync`, `unexplained`) → ns."""
    device_events: list[NamedTime]
    """The costliest."""
    operators: list[NamedTime]
    """Outermost operators that were on the path's host time, the costliest."""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """How well the dependency graph, run unchanged, gives the measured steps."""

    steps_error_frac: list[float]
    """Of each step, how far the simulated length is from the measured one."""
    drift_frac: float
    """How far simulated kernels start from measured ones, as a share of the step."""
    unexplained_ns: int
    """Waiting for which the trace shows no cause."""
    without_launch_frac: float
    """Share of the device's work whose launch is not in the file."""
    distrust: str | None
    """Why no saving rests on it; null where savings do."""


@dataclass(frozen=True, kw_only=True)
class RooflineFamily:
    """Kernels of one family and element type against the device's roof."""

    family: str
    """Kind of kernel, such as `matmul`."""
    dtype: str | None
    """Element type; null where arithmetic rates do not apply."""
    calls: int
    """Operator calls."""
    kernels: int
    """Kernels that they launched."""
    device_ns: int
    """Their device time."""
    flops: int
    """Floating-point operations."""
    bytes: int
    """Bytes that must be moved at least."""
    achieved_flops_per_s: float
    """FLOPs over device time."""
    attainable_flops_per_s: float
    """What memory and arithmetic rates allow."""
    peak_flops_per_s: float | None
    """Peak rate of the device for this type; null where its data sheet gives none."""
    achieved_bytes_per_s: float
    """Bytes over device time."""
    memory_bound_ns: int
    """Device time of the calls that memory limits."""
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
    """Model FLOPs utilization: known FLOPs over what the devices could do in the window, a lower bound; null where no
    peak rate is known."""
    window_ns: int
    """The time judged."""
    devices: int
    """Devices with kernels in it."""
    kernel_ns: int
    """Kernel time, without collectives, copies and sets."""
    known_ns: int
    """Of `kernel_ns`, kernels whose FLOPs and bytes are known."""
    families: list[RooflineFamily]
    """Kernels by family and element type, the most device time first."""


@dataclass(frozen=True, kw_only=True)
class FusionCandidate:
    """Memory-bound kernels in a row that one kernel could replace."""

    module: str
    """Class of the modules that launch the chain; empty where stacks do not tell."""
    modules: int
    """How many modules of that class."""
    ops: list[str]
    """The operators of a chain in order; the first ones of a long one."""
    length: int
    """Calls in a chain."""
    chains: int
    """How many such chains."""
    device_ns: int
    """Device time of all of them."""
    saving_ns: int
    """Upper bound."""


@dataclass(frozen=True, kw_only=True)
class FactCost:
    """What it took to derive one fact, and who used it."""

    fact: str
    """Name of the fact."""
    self_ns: int
    """Wall time without that of the facts that it needed itself."""
    used_by: list[str]
    """Rules and facts; `(direct)`: the report itself."""
    missing: str | None
    """Why there is none; null where it was derived."""
