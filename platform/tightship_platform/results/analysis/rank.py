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
from tightship_platform.units import format_ns
from tightship_platform.wire import STRETCHED


@dataclass(frozen=True, kw_only=True)
class StepLength:
    """Length of the whole steps, ns."""

    mean: int
    """Mean."""
    min: int
    """The shortest."""
    max: int
    """The longest."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Findings whose time overlaps, with the saving of all of them together: findings are never added up."""

    rules: list[str]
    """Ids of the rules."""
    places: list[str]
    """Their places."""
    saving_ns: int
    """The saving of all of them together, a step or of the recording."""
    low_ns: int
    """Its low end."""
    high_ns: int
    """Its high end."""
    low_frac: float
    """`low_ns` as a share."""
    high_frac: float
    """`high_ns` as a share."""
    share_frac: float
    """The saving as a share of the step, or of the recording."""
    method: str
    """`measured`, `simulated` or `bound`."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What kind of recording the file is."""

    graph_captures: int
    """Graphs that were captured during it."""
    captured_frac: float
    """Share of the launches that went into captured graphs, and ran nothing."""
    unseen_ns: int
    """Time at its start in which the device ran work that is not in the file; without steps it is not judged."""
    unrecorded_ns: int | None
    """Of what is judged, time in which the device looks idle and did what the file does not hold; null: not known."""
    distrust: str | None
    """Why it does not say what bounds the job (the file lacks work of the device, or the simulation does not give the
    recorded steps); null where it does."""
    unfit: str | None
    """Why no verdict can rest on it; null where one can."""
    starting_ns: int = 0
    """Time in first calls that create the device's context and load libraries, once a run."""
    profiling_ns: int = 0
    """Host time that recording Python stacks took by itself, as far as the trace shows it; no saving counts it."""


@dataclass(frozen=True, kw_only=True)
class TraceSummary:
    """What was judged, and where its time went; kept with the row of the trace."""

    device: str
    """Model of the device."""
    device_kind: str
    """`gpu` or `cpu`."""
    events: int
    """Events in the file."""
    covered_frac: float | None
    """Share of the recording whose device events are in the file; below 1 or null where it was cut off, and then the
    first of the warnings says so."""
    recording: Recording
    """What kind of recording it is."""
    saving_unit: str | None
    """`ns/step`, or without steps `ns/recording`; null where nothing can be judged."""
    window_start_ns: int | None
    """Start of what was judged."""
    window_ns: int
    """The whole steps, or the recording."""
    steps: int
    """Whole steps in it."""
    step_ns: StepLength | None
    """Their length; null without any."""
    untraced_step_ns: int | None
    """Mean step by the step counter while nothing was recorded, where known."""
    device_busy_ns: int | None
    """Time in which the device ran anything."""
    buckets: dict[str, int]
    """Bucket → ns; sums to `window_ns` exactly."""
    unclaimed_ns: dict[str, int]
    """Of each bucket but `productive` what no finding claims."""
    claims: list[Claim]
    """Findings grouped by the time that they share."""
    joint_saving_frac: float
    """Share of the window that all findings together give back at most."""
    warnings: list[str]
    """What limits the verdict, one line each."""
    recorded_ns: int | None = None
    """From the start of the first event to the end of the last; 0: there is none with a duration, null: an earlier
    release analyzed it."""
    saved_ns: int | None = None
    """When the last checkpoint in what was judged had been written; null: it shows none."""
    mfu_frac: float | None = None
    """Model FLOPs utilization, a lower bound; null: not known."""


def device_label(device: str, device_kind: str, covered_frac: float | None) -> str:
    """The model of the device in words; of a file that is cut off before any device event the kind is a guess."""
    if device_kind != "cpu":
        return device
    return "device unknown" if covered_frac is None else "CPU only"


@dataclass(frozen=True, kw_only=True)
class RankFigures:
    """Section by section what is known of a rank; null where the trace does not hold it."""

    steps: list[StepFigures]
    """Whole steps; empty where the trace marks none."""
    temporal: Temporal | None
    """Busy and idle time of the device."""
    overlap: Overlap | None
    """Communication and what hid it."""
    by_patterns: DeviceTime | None
    """The same with communication recognized by the names of HolisticTraceAnalysis; null where nothing differs."""
    communication_inferred: int
    """Device events that count as communication by their name alone."""
    idle_by_stream: list[StreamIdle]
    """Idle time of each stream."""
    idle_causes: list[CausedTime] | None
    """Sums to `temporal.idle_ns`; without device events to the idle time of the window."""
    window_idle_causes: list[CausedTime] | None
    """Sums to the window without the device's busy time."""
    graph_idle_ns: int | None
    """Of the window's idle time what lies before work of captured graphs that were launched already."""
    exposed_causes: list[CausedTime] | None
    """Why communication was exposed; sums to it."""
    kernels: list[KernelFigures]
    """Device events by name, the most time first."""
    memory: list[MemoryFigures] | None
    """Memory of each device, where allocations were recorded."""
    queues: list[QueueFigures]
    """Launch queues of the streams."""
    launches: LaunchFigures | None
    """What launches cost."""
    copies: list[CopyFigures]
    """Copies and sets by type."""
    annotations: list[AnnotationFigures]
    """Ranges that the program or torch named."""
    kernel_sequences: list[SequenceFigures]
    """Kernels that operators launch again and again."""
    simulation_error_frac: float | None
    """Mean error of the simulated steps; null where nothing is simulated."""
    simulation: Simulation | None
    """How well the dependency graph reproduces the recording."""
    critical_path: list[CriticalPath] | None
    """The critical path of each whole step."""
    roofline: Roofline | None
    """Work against the device's roof; null where shapes or the device's rates are not known."""
    fusion_candidates: list[FusionCandidate] | None
    """Chains of kernels that could be one."""


@dataclass(frozen=True, kw_only=True)
class RankAnalysis:
    """One rank's trace, read and judged."""

    rank: int
    """The rank."""
    source: str
    """Path or address of the file."""
    named: bool
    """The file itself says which rank it is."""
    summary: TraceSummary
    """What was judged, and where its time went."""
    figures: RankFigures
    """The exact figures."""
    facts: list[FactCost]
    """What was derived and what it cost, the greatest first."""
    gaps: list[Gap]
    """The longest stretches in which the device idled."""


def is_stretched(traced_ns: int, untraced_ns: int | None) -> bool:
    """Whether recording made the steps too long to say what anything saves, see `wire.STRETCHED`."""
    return untraced_ns is not None and traced_ns > STRETCHED * untraced_ns


def stretch_words(traced_ns: int, untraced_ns: int) -> str:
    """By how much recording made the steps longer."""
    ratio, steps = traced_ns / untraced_ns, f"{format_ns(traced_ns)}; {format_ns(untraced_ns)} without"
    return f"Recording made a step {ratio:.1f} times as long ({steps})"
