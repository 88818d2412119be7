"""The figures of one rank: what the metrics and facts say, as public records."""

from __future__ import annotations

from tightship_analyzers.analysis.call_figures import (
    annotation_figures,
    copy_figures,
    launch_figures,
    queue_figures,
    sequence_figures,
)
from tightship_analyzers.analysis.picked_steps import step_names
from tightship_analyzers.facts.activity.device_busy import DeviceGaps
from tightship_analyzers.facts.idle.causes import Attributed, ExposedCommunication, IdleCauses
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.roofline.fusion import FusionCandidates
from tightship_analyzers.facts.roofline.measured import Roofline as MeasuredRoofline
from tightship_analyzers.facts.simulation.critical_path import CriticalPaths
from tightship_analyzers.facts.simulation.dependency_graph import DependencyGraph
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.metrics.graph_idle import graph_idle
from tightship_analyzers.metrics.idle import idle_by_stream
from tightship_analyzers.metrics.kernel_classes import KernelClasses, Scheme, kernel_classes
from tightship_analyzers.metrics.kernels import kernel_names
from tightship_analyzers.metrics.memory import memory_timeline
from tightship_analyzers.metrics.overlap import overlap
from tightship_analyzers.metrics.step_filter import launched_between, without_last_step
from tightship_analyzers.metrics.steps import steps
from tightship_analyzers.metrics.temporal import temporal_breakdown
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.analysis.figures import (
    MOST_PLACES,
    CausedTime,
    CriticalPath,
    DeviceTime,
    FusionCandidate,
    KernelFigures,
    MemoryFigures,
    NamedTime,
    Overlap,
    Roofline,
    RooflineFamily,
    Simulation,
    StepFigures,
    StreamIdle,
    Temporal,
)
from tightship_platform.results.analysis.rank import RankFigures
from tightship_platform.results.not_applicable import NotApplicable
from tightship_platform.text import shown

NAME_CHARS = 500
MOST_ON_PATH = 10
MOST_OPS, MOST_CANDIDATES = 12, 20


def rank_figures(facts: Facts, *, all_steps: bool = False, only_steps: bool = False) -> RankFigures:
    """Collect what is known of a rank, section by section; null where the trace does not hold it.

    :param all_steps: count the last marked step too, which recording usually cut off.
    :param only_steps: count only what the device did for the steps that `facts` hold, which somebody picked.
    """
    trace, known = facts.trace, facts.find(Steps)
    if only_steps and known is not None:
        counted = launched_between(trace, known.start_ns, known.end_ns)
    else:
        counted = trace if all_steps else without_last_step(trace)
    classes = kernel_classes(counted)
    recognised = _device_time(counted, classes, Scheme.RECOGNISED)
    graph = facts.find(DependencyGraph)
    return RankFigures(
        steps=_steps(facts, known),
        temporal=recognised.temporal,
        overlap=recognised.overlap,
        by_patterns=_device_time(counted, classes, Scheme.PATTERNS) if classes.differing else None,
        communication_inferred=classes.inferred,
        idle_by_stream=_idle(counted),
        idle_causes=_idle_causes(facts, counted),
        window_idle_causes=_window_idle_causes(facts),
        graph_idle_ns=_graph_idle_ns(facts),
        exposed_causes=_exposed_causes(facts),
        kernels=_kernels(counted, classes),
        memory=_memory(counted),
        queues=queue_figures(counted),
        launches=launch_figures(counted),
        copies=copy_figures(counted),
        annotations=annotation_figures(counted),
        kernel_sequences=sequence_figures(counted),
        simulation_error_frac=graph.mean_error_frac if graph else None,
        simulation=_simulation(graph) if graph else None,
        critical_path=_critical_path(facts),
        roofline=_roofline(facts),
        fusion_candidates=_fusion_candidates(facts),
    )


def _critical_path(facts: Facts) -> list[CriticalPath] | None:
    known = facts.find(CriticalPaths)
    if known is None:
        return None

    def costliest(sums: dict[str, int]) -> list[NamedTime]:
        return [NamedTime(name=shown(name, NAME_CHARS), ns=ns) for name, ns in list(sums.items())[:MOST_ON_PATH]]

    return [
        CriticalPath(
            by_part_ns={part.value: ns for part, ns in path.by_part_ns.items()},
            device_events=costliest(path.device_events(facts.trace)),
            operators=costliest(path.operators(facts.trace)),
        )
        for path in known.paths
    ]


def _roofline(facts: Facts) -> Roofline | None:
    known = facts.find(MeasuredRoofline)
    if known is None:
        return None
    return Roofline(
        device=known.device.id,
        mfu_frac=known.mfu_frac,
        window_ns=known.window_ns,
        devices=known.devices,
        kernel_ns=known.kernel_ns,
        known_ns=known.known_ns,
        families=[
            RooflineFamily(
                family=row.family.value,
                dtype=row.dtype or None,
                calls=row.calls,
                kernels=row.kernels,
                device_ns=row.device_ns,
                flops=row.flops,
                bytes=row.bytes,
                achieved_flops_per_s=row.achieved_flops_per_s,
                attainable_flops_per_s=row.attainable_flops_per_s,
                peak_flops_per_s=row.peak_flops_per_s,
                achieved_bytes_per_s=row.achieved_bytes_per_s,
                memory_bound_ns=row.memory_bound_ns,
                least_ns=row.least_ns,
                roof_frac=row.roof_frac,
            )
            for row in known.families
        ],
    )


def _fusion_candidates(facts: Facts) -> list[FusionCandidate] | None:
    known = facts.find(FusionCandidates)
    if known is None:
        return None
    return [
        FusionCandidate(
            module=row.module,
            modules=row.modules,
            ops=list(row.ops[:MOST_OPS]),
            length=len(row.ops),
            chains=len(row.chains),
            device_ns=row.device_ns,
            saving_ns=row.saving_ns,
        )
        for row in known.rows[:MOST_CANDIDATES]
    ]


def _simulation(graph: DependencyGraph) -> Simulation:
    return Simulation(
        steps_error_frac=graph.error_frac.tolist(),
        drift_frac=graph.drift_frac,
        unexplained_ns=graph.unexplained_ns,
        without_launch_frac=graph.anchored_frac,
        distrust=graph.distrust,
    )


def _steps(facts: Facts, known: Steps | None) -> list[StepFigures]:
    """Of each step; `idle_causes` and `exposed_causes` (cause → ns) sum to its idle time and exposed communication."""
    if known is None:
        return []
    trace, idle, exposed = facts.trace, facts.find(IdleCauses), facts.find(ExposedCommunication)
    measured = steps(trace, bounds_ns=known.bounds_ns, host_bounds_ns=known.host_bounds_ns)
    assert not isinstance(measured, NotApplicable), "steps with bounds are always applicable"
    return [
        StepFigures(
            step=number,
            name=name,
            start_ns=step.start_ns,
            end_ns=step.end_ns,
            duration_ns=step.duration_ns,
            device_busy_ns=step.device_busy_ns,
            launched=step.launched,
            device_work_ns=step.device_work_ns,
            idle_causes=_by_cause(idle.of_step(row)) if idle else None,
            exposed_causes=_by_cause(exposed.of_step(row)) if exposed else None,
        )
        for row, ((number, name), step) in enumerate(zip(step_names(trace, known), measured, strict=True))
    ]


def _device_time(trace: Trace, classes: KernelClasses, scheme: Scheme) -> DeviceTime:
    time, hidden = (
        temporal_breakdown(trace, scheme=scheme, classes=classes),
        overlap(trace, scheme=scheme, classes=classes),
    )
    return DeviceTime(
        temporal=None
        if isinstance(time, NotApplicable)
        else Temporal(
            kernel_span_ns=time.kernel_span_ns,
            idle_ns=time.idle_ns,
            compute_ns=time.compute_ns,
            non_compute_ns=time.non_compute_ns,
        ),
        overlap=None
        if isinstance(hidden, NotApplicable)
        else Overlap(comm_ns=hidden.comm_ns, overlapped_ns=hidden.overlapped_ns, frac=hidden.overlapped_frac),
    )


def _idle(trace: Trace) -> list[StreamIdle]:
    rows = idle_by_stream(trace)
    if isinstance(rows, NotApplicable):
        return []
    return [
        StreamIdle(
            device=row.device,
            stream=row.stream,
            events=row.events,
            unlinked=row.unlinked,
            host_wait_ns=row.host_wait_ns,
            kernel_wait_ns=row.kernel_wait_ns,
            other_ns=row.other_ns,
        )
        for row in rows
    ]


def _idle_causes(facts: Facts, counted: Trace) -> list[CausedTime] | None:
    """Sums to `temporal.idle_ns`; where there are no device events, to the idle time of the window."""
    idle = facts.find(IdleCauses)
    if idle is None:
        return None
    found = idle.of_kernel_span(counted) if len(counted.device_events) else idle.window
    return found.as_rows(MOST_PLACES)


def _window_idle_causes(facts: Facts) -> list[CausedTime] | None:
    """Sums to the window without the device's busy time, so that it fits the buckets."""
    idle = facts.find(IdleCauses)
    return None if idle is None else idle.window.as_rows(MOST_PLACES)


def _graph_idle_ns(facts: Facts) -> int | None:
    """Of the window's idle time what lies before work of graphs that were launched already."""
    gaps = facts.find(DeviceGaps)
    return None if gaps is None else graph_idle(facts.trace, gaps.spans).measure_ns


def _by_cause(time: Attributed) -> dict[str, int]:
    return {cause.word: ns for cause, ns in time.by_cause().items()}


def _memory(trace: Trace) -> list[MemoryFigures] | None:
    rows = memory_timeline(trace)
    if isinstance(rows, NotApplicable):
        return None
    return [
        MemoryFigures(
            device=row.device,
            peak_allocated_bytes=row.peak_allocated_bytes,
            peak_reserved_bytes=row.peak_reserved_bytes,
            peak_ns=row.peak_ns,
            capacity_bytes=row.capacity_bytes,
            peak_frac=row.peak_frac,
            is_relative=row.is_relative,
            allocations=row.allocations,
            frees=row.frees,
            churn_bytes=row.churn_bytes,
            growth_bytes=row.growth_bytes,
        )
        for row in rows
    ]


def _exposed_causes(facts: Facts) -> list[CausedTime] | None:
    exposed = facts.find(ExposedCommunication)
    return None if exposed is None else exposed.window.as_rows(MOST_PLACES)


def _kernels(trace: Trace, classes: KernelClasses) -> list[KernelFigures]:
    rows = kernel_names(trace, classes=classes)
    if isinstance(rows, NotApplicable):
        return []
    return [
        KernelFigures(
            name=shown(row.name, NAME_CHARS),
            type=row.type.name.lower(),
            count=row.duration.count,
            unlinked=row.unlinked,
            sum_ns=row.duration.sum_ns,
            min_ns=row.duration.min_ns,
            max_ns=row.duration.max_ns,
            mean_ns=row.duration.mean_ns,
            std_ns=row.duration.std_ns,
        )
        for row in rows
    ]
