"""Figures of whole recordings to the nanosecond, against published ones or a brute force on the file's text.

What HolisticTraceAnalysis itself prints is compared in test_breakdown_reference.py.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from pathlib import Path
from typing import TypeVar

import pytest
from brute_force import Event, class_of, running
from recordings import ANY, MADE, brute_force, figures

from tightship_analyzers import trace as traces
from tightship_analyzers.metrics.copies import copies
from tightship_analyzers.metrics.duration_stats import DurationStats
from tightship_analyzers.metrics.idle import idle_by_stream
from tightship_analyzers.metrics.kernel_classes import Evidence, KernelClass, Scheme, kernel_classes
from tightship_analyzers.metrics.kernels import kernel_names, kernel_types
from tightship_analyzers.metrics.launches import SHORT_NS, launch_stats
from tightship_analyzers.metrics.overlap import overlap
from tightship_analyzers.metrics.queue_length import queue_length
from tightship_analyzers.metrics.step_filter import without_last_step
from tightship_analyzers.metrics.temporal import temporal_breakdown
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.not_applicable import NotApplicable

T = TypeVar("T")
made = pytest.mark.parametrize("recording", MADE, indirect=True)


def given(answer: T | NotApplicable) -> T:
    assert not isinstance(answer, NotApplicable), answer
    return answer


def kept(path: Path) -> Trace:
    return without_last_step(traces.open(path))


def assert_stats(found: DurationStats, expected: list[int]) -> None:
    assert (found.count, found.sum_ns) == (len(expected), sum(expected))
    assert (found.min_ns, found.max_ns) == (min(expected), max(expected))
    assert found.mean_ns == pytest.approx(statistics.fmean(expected), rel=1e-9)
    assert found.std_ns == pytest.approx(statistics.stdev(expected) if len(expected) > 1 else 0, rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("recording", ANY, indirect=True)
def test_temporal_overlap_and_idle_to_the_nanosecond(recording: Path) -> None:
    trace, expected = kept(recording), figures(recording)
    assert (len(trace.device_events), int((trace.device_events.launch < 0).sum())) == (
        expected["device_events"],
        expected["unlinked"],
    )
    if not expected["device_events"]:
        assert isinstance(temporal_breakdown(trace), NotApplicable)
        return
    breakdown = given(temporal_breakdown(trace, scheme=Scheme.PATTERNS))
    assert {key: getattr(breakdown, key) for key in expected["temporal"]} == expected["temporal"]
    shared = given(overlap(trace, scheme=Scheme.PATTERNS))
    assert {key: getattr(shared, key) for key in expected["overlap"]} == expected["overlap"]
    cells = [
        {key: getattr(row, key) for key in ("stream", "host_wait_ns", "kernel_wait_ns", "other_ns")}
        for row in given(idle_by_stream(trace))
    ]
    assert cells == sorted(expected["idle_by_stream"], key=lambda cell: cell["stream"])


def test_the_recordings_hold_what_they_are_to_show(made_recordings: dict[str, Path]) -> None:
    """All kinds of waiting, of overlap and of missing launches, or the comparisons above would show little."""
    found = [brute_force(path).figures() for path in made_recordings.values()]
    for kind in ("host_wait_ns", "kernel_wait_ns", "other_ns"):
        assert sum(any(cell[kind] for cell in one["idle_by_stream"]) for one in found) > 8, kind
    assert sum(0 < one["overlap"]["overlapped_ns"] < one["overlap"]["comm_ns"] for one in found) > 8
    assert sum(one["unlinked"] > 0 for one in found) >= 2
    assert sum(len(one["idle_by_stream"]) > 2 for one in found) > 8


@made
def test_kernel_types_by_what_runs_together(recording: Path) -> None:
    ours = given(kernel_types(kept(recording), scheme=Scheme.PATTERNS)).running_ns
    expected = {together: ns for together, ns in brute_force(recording).running.items() if together and ns}
    assert {frozenset(kind.word for kind in types): ns for types, ns in ours.items() if ns} == expected


@made
def test_kernels_by_name(recording: Path) -> None:
    rows = {(row.name, row.type.word): row for row in given(kernel_names(kept(recording), scheme=Scheme.PATTERNS))}
    expected: defaultdict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in brute_force(recording).events:
        expected[event.name, class_of(event.name)].append(event)
    assert rows.keys() == expected.keys()
    for key, events in expected.items():
        assert_stats(rows[key].duration, [event.end - event.start for event in events])
        assert rows[key].unlinked == sum(event.call is None for event in events)


@made
def test_launches_and_what_they_started(recording: Path) -> None:
    truth, stats = brute_force(recording), given(launch_stats(kept(recording)))
    first: dict[int, tuple[Event, Event]] = {}
    for event in truth.events:
        if event.call is not None:
            first.setdefault(id(event.call), (event.call, event))
    pairs = list(first.values())
    linked = [event.end - event.start for event in truth.events if event.call is not None]
    assert_stats(stats.host, [call.end - call.start for call, _ in pairs])
    assert_stats(stats.device, linked)
    assert_stats(stats.delay, [max(event.start - call.end, 0) for call, event in pairs])
    assert (stats.unlinked, stats.short_events) == (truth.unlinked, sum(ns <= SHORT_NS for ns in linked))
    assert {row.call: row.host.count for row in stats.by_call} == Counter(call.name for call, _ in pairs)


@made
def test_queues_change_by_change(recording: Path) -> None:
    truth, trace = brute_force(recording), kept(recording)
    found = {(queue.device, queue.stream): queue for queue in given(queue_length(trace))}
    expected = {stream: changes for stream in truth.by_stream() if (changes := truth.queue(stream))}
    assert found.keys() == expected.keys()
    for stream, queue in found.items():
        assert [(at - trace.base_ns, length) for at, length in zip(queue.time_ns, queue.length, strict=True)] == (
            expected[stream]
        )
        assert queue.length.min() == 0 == queue.length[-1]


@pytest.mark.parametrize("recording", [name for name in MADE if name != "MTIA"], indirect=True)
def test_copies_by_type(recording: Path) -> None:
    """MTIA's requests are kernels that tell no direction."""
    moved: defaultdict[str, list[Event]] = defaultdict(list)
    for event in brute_force(recording).events:
        if event.name.startswith("Mem"):
            moved[event.name.split(" (")[0]].append(event)
    rows = {row.type: row for row in given(copies(kept(recording)))}
    assert rows.keys() == moved.keys()
    for kind, events in moved.items():
        assert_stats(rows[kind].duration, [event.end - event.start for event in events])
        assert rows[kind].pageable == sum("Pageable" in event.name for event in events)
        assert rows[kind].busy_ns == sum(ns for together, ns in running(events).items() if together)


@pytest.mark.parametrize("recording", [name for name in MADE if name != "all at once"], indirect=True)
def test_communication_is_known_by_more_than_names(recording: Path) -> None:
    """By the operator that launched it, by its arguments, and where both are lost by its name.

    All at once, a kernel whose call is missing finds another call of its number, which may be a collective's.
    """
    trace = traces.open(recording)
    classes, names = kernel_classes(trace), [trace.names[number] for number in trace.device_events.name]
    for name, found, by_patterns in zip(names, classes.recognised, classes.patterns, strict=True):
        reduces = "nccl" in name or "multimem_all_reduce" in name
        assert (found == KernelClass.COMMUNICATION) == reduces, name
        # The peer's patterns know no symmetric memory, and call all that begins with `hip` communication.
        if "multimem" in name or name.startswith("hip"):
            assert (by_patterns == KernelClass.COMMUNICATION) == name.startswith("hip")
    if recording.stem in ("everything", "whole microseconds", "symmetric memory"):
        reported = (classes.evidence == Evidence.LINK) | (classes.evidence == Evidence.ARGUMENTS)
        assert (reported == (classes.recognised == KernelClass.COMMUNICATION)).all() and reported.any()
