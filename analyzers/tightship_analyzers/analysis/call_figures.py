"""Figures of one rank for `tightship analyze --json` on what the host called and what waited: queues, launches, copies,
annotated ranges and frequent sequences of kernels, as plain values. Times are ns, missing is null."""

from __future__ import annotations

from typing import Any

from tightship_analyzers.metrics.copies import copies
from tightship_analyzers.metrics.duration_stats import DurationStats
from tightship_analyzers.metrics.launches import launch_stats
from tightship_analyzers.metrics.queue_length import queue_length
from tightship_analyzers.metrics.sequences import kernel_sequences
from tightship_analyzers.metrics.user_annotations import annotation_times
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.not_applicable import NotApplicable
from tightship_platform.text import shown

NAME_CHARS = 500
MOST_ANNOTATIONS, MOST_SEQUENCES, MOST_KERNELS = 100, 20, 20
"""Rows of the two lists, and kernels that a sequence names; the first ones are kept."""

Figures = dict[str, Any]


def call_figures(trace: Trace) -> Figures:
    """`queues`, `launches`, `copies`, `annotations` and `kernel_sequences`."""
    return {
        "queues": _queues(trace),
        "launches": _launches(trace),
        "copies": _copies(trace),
        "annotations": _annotations(trace),
        "kernel_sequences": _sequences(trace),
    }


def _stats(stats: DurationStats) -> Figures:
    return {
        "count": stats.count,
        "sum_ns": stats.sum_ns,
        "min_ns": stats.min_ns,
        "max_ns": stats.max_ns,
        "mean_ns": stats.mean_ns,
        "std_ns": stats.std_ns,
    }


def _queues(trace: Trace) -> list[Figures]:
    rows = queue_length(trace)
    if isinstance(rows, NotApplicable):
        return []
    found = []
    for row in rows:
        summary = row.summary
        found.append(
            {
                "device": row.device,
                "stream": row.stream,
                "unlinked": row.unlinked,
                "mean": summary.mean,
                "p50": summary.p50,
                "p75": summary.p75,
                "max": summary.max,
                "area_ns": row.area_ns,
                "full_ns": row.full_ns(),
            }
        )
    return found


def _launches(trace: Trace) -> Figures | None:
    stats = launch_stats(trace)
    if isinstance(stats, NotApplicable):
        return None
    return {
        "host": _stats(stats.host),
        "device": _stats(stats.device),
        "delay": _stats(stats.delay),
        "short_events": stats.short_events,
        "shorter_than_call": stats.shorter_than_call,
        "long_calls": stats.long_calls,
        "long_delays": stats.long_delays,
        "unlinked": stats.unlinked,
        "by_call": [
            {
                "call": shown(row.call, NAME_CHARS),
                "host": _stats(row.host),
                "device": _stats(row.device),
                "delay": _stats(row.delay),
            }
            for row in stats.by_call
        ],
    }


def _copies(trace: Trace) -> list[Figures]:
    rows = copies(trace)
    if isinstance(rows, NotApplicable):
        return []
    return [
        {
            "type": row.type,
            **_stats(row.duration),
            "busy_ns": row.busy_ns,
            "bytes": row.bytes if row.unsized < row.duration.count else None,
            "unsized": row.unsized,
            "pageable": row.pageable,
            "gbps": row.gbps,
            "max_gbps": row.summary.max if row.summary else None,
        }
        for row in rows
    ]


def _annotations(trace: Trace) -> list[Figures]:
    rows = annotation_times(trace)
    if isinstance(rows, NotApplicable):
        return []
    return [
        {
            "name": shown(row.name, NAME_CHARS),
            "host": _stats(row.host),
            "device": _stats(row.device),
            "device_work_ns": row.device_work_ns,
        }
        for row in rows[:MOST_ANNOTATIONS]
    ]


def _sequences(trace: Trace) -> list[Figures]:
    rows = kernel_sequences(trace)
    if isinstance(rows, NotApplicable):
        return []
    return [
        {
            "operator": shown(row.operator, NAME_CHARS),
            "kernels": [shown(name, NAME_CHARS) for name in row.kernels[:MOST_KERNELS]],
            "length": len(row.kernels),
            "count": row.count,
            "device_ns": row.device_ns,
            "host_ns": row.host_ns,
        }
        for row in rows[:MOST_SEQUENCES]
    ]
