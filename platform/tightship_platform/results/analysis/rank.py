"""What the trace of one rank says."""

from __future__ import annotations

from dataclasses import dataclass

from tightship_platform.results.analysis.figures import (
    AnnotationFigures,
    CausedTime,
    CopyFigures,
    CriticalPath,
    DeviceTime,
    FactCost,
    FusionCandidate,
    KernelFigures,
    LaunchFigures,
    MemoryFigures,
    Overlap,
    QueueFigures,
    Roofline,
    SequenceFigures,
    Simulation,
    StepFigures,
    StreamIdle,
    Temporal,
)
from tightship_platform.results.evidence import Gap


@dataclass(frozen=True, kw_only=True)
class StepLength:
    """Length of the whole steps, ns."""

    mean: int
    min: int
    max: int


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Findings whose time overlaps, with the saving of all of them together: findings are never added up."""

    rules: list[str]
    places: list[str]
    saving_ns: int
    low_ns: int
    high_ns: int
    low_frac: float
    high_frac: float
    share_frac: float
    """The saving as a share of the step, or of the recording."""
    method: str


@dataclass(frozen=True, kw_only=True)
class TraceSummary:
    """What was judged, and where its time went; kept with the row of the trace."""

    device: str
    device_kind: str
    """`gpu` or `cpu`."""
    events: int
    covered_frac: float | None
    """Share of the recording whose device events are in the file; below 1 or null where it was cut off, and then the
    first of the warnings says so."""
    saving_unit: str | None
    """`ns/step`, or without steps `ns/recording`; null where nothing can be judged."""
    window_start_ns: int | None
    window_ns: int
    """The whole steps, or the recording."""
    steps: int
    step_ns: StepLength | None
    untraced_step_ns: int | None
    """Mean step by the step counter while nothing was recorded, where known."""
    device_busy_ns: int | None
    buckets: dict[str, int]
    """Bucket → ns; sums to `window_ns` exactly."""
    unclaimed_ns: dict[str, int]
    """Of each bucket but `productive` what no finding claims."""
    claims: list[Claim]
    joint_saving_frac: float
    """Share of the window that all findings together give back at most."""
    warnings: list[str]


@dataclass(frozen=True, kw_only=True)
class RankFigures:
    """Section by section what is known of a rank; null where the trace does not hold it."""

    steps: list[StepFigures]
    """Whole steps; empty where the trace marks none."""
    temporal: Temporal | None
    overlap: Overlap | None
    by_patterns: DeviceTime | None
    """The same with communication told by the name patterns of HolisticTraceAnalysis; null where nothing differs."""
    communication_inferred: int
    """Device events that count as communication by their name alone."""
    idle_by_stream: list[StreamIdle]
    idle_causes: list[CausedTime] | None
    """Sums to `temporal.idle_ns`; without device events to the idle time of the window."""
    window_idle_causes: list[CausedTime] | None
    """Sums to the window without the device's busy time."""
    graph_idle_ns: int | None
    """Of the window's idle time what lies before work of captured graphs that were launched already."""
    exposed_causes: list[CausedTime] | None
    kernels: list[KernelFigures]
    memory: list[MemoryFigures] | None
    queues: list[QueueFigures]
    launches: LaunchFigures | None
    copies: list[CopyFigures]
    annotations: list[AnnotationFigures]
    kernel_sequences: list[SequenceFigures]
    simulation_error_frac: float | None
    simulation: Simulation | None
    critical_path: list[CriticalPath] | None
    roofline: Roofline | None
    fusion_candidates: list[FusionCandidate] | None


@dataclass(frozen=True, kw_only=True)
class RankAnalysis:
    """One rank's trace, read and judged."""

    rank: int
    source: str
    """Path or address of the file."""
    named: bool
    """The file itself says which rank it is."""
    summary: TraceSummary
    figures: RankFigures
    facts: list[FactCost]
    """What was derived and what it cost, the greatest first."""
    gaps: list[Gap]
    """The longest stretches in which the device idled."""
