"""Figures of one rank on what the host called and what waited: queues, launches, copies, annotated ranges and frequent
sequences of kernels."""

from __future__ import annotations

from tightship_analyzers.metrics.copies import copies
from tightship_analyzers.metrics.duration_stats import DurationStats
from tightship_analyzers.metrics.launches import launch_stats
from tightship_analyzers.metrics.queue_length import queue_length
from tightship_analyzers.metrics.sequences import kernel_sequences
from tightship_analyzers.metrics.user_annotations import annotation_times
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.analysis.figures import (
    AnnotationFigures,
    CallFigures,
    CopyFigures,
    Durations,
    LaunchFigures,
    QueueFigures,
    SequenceFigures,
)
from tightship_platform.results.not_applicable import NotApplicable
from tightship_platform.text import shown

NAME_CHARS = 500
MOST_ANNOTATIONS, MOST_SEQUENCES, MOST_KERNELS = 100, 20, 20
"""Rows of the two lists, and kernels that a sequence names; the first ones are kept."""


def _durations(stats: DurationStats) -> Durations:
    return Durations(
        count=stats.count,
        sum_ns=stats.sum_ns,
        min_ns=stats.min_ns,
        max_ns=stats.max_ns,
        mean_ns=stats.mean_ns,
        std_ns=stats.std_ns,
    )


def queue_figures(trace: Trace) -> list[QueueFigures]:
    """Queues of the streams."""
    rows = queue_length(trace)
    if isinstance(rows, NotApplicable):
        return []
    found = []
    for row in rows:
        summary = row.summary
        found.append(
            QueueFigures(
                device=row.device,
                stream=row.stream,
                unlinked=row.unlinked,
                mean=summary.mean,
                p50=summary.p50,
                p75=summary.p75,
                max=summary.max,
                area_ns=row.area_ns,
                full_ns=row.full_ns(),
            )
        )
    return found


def launch_figures(trace: Trace) -> LaunchFigures | None:
    """Launch calls; null without launches."""
    stats = launch_stats(trace)
    if isinstance(stats, NotApplicable):
        return None
    return LaunchFigures(
        host=_durations(stats.host),
        device=_durations(stats.device),
        delay=_durations(stats.delay),
        short_events=stats.short_events,
        shorter_than_call=stats.shorter_than_call,
        long_calls=stats.long_calls,
        long_delays=stats.long_delays,
        unlinked=stats.unlinked,
        by_call=[
            CallFigures(
                call=shown(row.call, NAME_CHARS),
                host=_durations(row.host),
                device=_durations(row.device),
                delay=_durations(row.delay),
            )
            for row in stats.by_call
        ],
    )


def copy_figures(trace: Trace) -> list[CopyFigures]:
    """Copies and fills by type."""
    rows = copies(trace)
    if isinstance(rows, NotApplicable):
        return []
    return [
        CopyFigures(
            type=row.type,
            count=row.duration.count,
            sum_ns=row.duration.sum_ns,
            min_ns=row.duration.min_ns,
            max_ns=row.duration.max_ns,
            mean_ns=row.duration.mean_ns,
            std_ns=row.duration.std_ns,
            busy_ns=row.busy_ns,
            bytes=row.bytes if row.unsized < row.duration.count else None,
            unsized=row.unsized,
            pageable=row.pageable,
            gbps=row.gbps,
            max_gbps=row.summary.max if row.summary else None,
        )
        for row in rows
    ]


def annotation_figures(trace: Trace) -> list[AnnotationFigures]:
    """User ranges by name, the first ones."""
    rows = annotation_times(trace)
    if isinstance(rows, NotApplicable):
        return []
    return [
        AnnotationFigures(
            name=shown(row.name, NAME_CHARS),
            host=_durations(row.host),
            device=_durations(row.device),
            device_work_ns=row.device_work_ns,
        )
        for row in rows[:MOST_ANNOTATIONS]
    ]


def sequence_figures(trace: Trace) -> list[SequenceFigures]:
    """Frequent sequences of kernels, the first ones."""
    rows = kernel_sequences(trace)
    if isinstance(rows, NotApplicable):
        return []
    return [
        SequenceFigures(
            operator=shown(row.operator, NAME_CHARS),
            kernels=[shown(name, NAME_CHARS) for name in row.kernels[:MOST_KERNELS]],
            length=len(row.kernels),
            count=row.count,
            device_ns=row.device_ns,
            host_ns=row.host_ns,
        )
        for row in rows[:MOST_SEQUENCES]
    ]
