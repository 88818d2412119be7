"""The graph on recorded traces: unchanged it is the recording; critical paths; the peer's path beside ours."""

from __future__ import annotations

import functools
import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest
from hazard_traces import PlayedJob
from recordings import ANY, MADE
from reference_data import TRACES, trace_paths

from tightship_analyzers import trace as traces
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.simulation.dependency_graph import MAX_ERROR_FRAC, DependencyGraph
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.graph.critical_path import critical_paths
from tightship_analyzers.graph.model import Edge
from tightship_analyzers.graph.simulate import simulate
from tightship_analyzers.trace.model import Trace

RECORDED = Path(__file__).parents[2] / "data" / "traces"
PEER = TRACES / "hta" / "critical_path"


@functools.cache
def opened(path: Path) -> tuple[Trace, DependencyGraph, bool]:
    trace = traces.open(path)
    facts = Facts(trace)
    return trace, facts[DependencyGraph], facts.find(Steps) is not None


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.json.gz")), ids=lambda path: path.name)
def test_our_recordings_are_reproduced_exactly(path: Path) -> None:
    known = opened(path)[1]
    assert known.error_frac.max() == 0
    assert known.distrust is None


@pytest.mark.reference
def test_nine_of_ten_reference_steps_are_reproduced_and_the_others_have_a_reason() -> None:
    assert trace_paths()
    errors = [error for path in trace_paths() for error in errors_with_a_reason(path)]
    assert len(errors) > 70
    assert (np.array(errors) <= MAX_ERROR_FRAC).mean() >= 0.9


@pytest.mark.parametrize("recording", MADE, indirect=True)
def test_made_steps_are_reproduced_or_have_a_reason(recording: Path) -> None:
    errors_with_a_reason(recording)


def test_made_steps_without_waits_that_nothing_shows_are_reproduced(tmp_path: Path) -> None:
    errors = []
    for seed in range(8):
        job = PlayedJob(rng=random.Random(seed), late_ns=(0, 0, 1, 900, 1_777), stacks=seed % 2 == 0).train()
        known = Facts(job.read(tmp_path))[DependencyGraph]
        assert known.distrust is None
        errors.extend(known.error_frac.tolist())
    assert len(errors) == 8 * 5
    assert (np.array(errors) <= MAX_ERROR_FRAC).mean() >= 0.9


def errors_with_a_reason(path: Path) -> list[float]:
    """How far each step of a trace is missed; of larger errors the graph itself says why."""
    _, known, has_steps = opened(path)
    if not has_steps:
        return []
    assert known.distrust or known.mean_error_frac <= MAX_ERROR_FRAC, path
    if known.error_frac.max() > MAX_ERROR_FRAC:
        assert known.unexplained_ns > 0, path
    errors: list[float] = known.error_frac.tolist()
    return errors


@pytest.mark.parametrize("recording", ANY, indirect=True)
def test_reference_graphs_are_sound_and_their_paths_fill_the_steps(recording: Path) -> None:
    trace, known, _ = opened(recording)
    graph = known.graph
    assert (graph.src < graph.dst).all()
    assert (simulate(graph).time_ns == known.unchanged.time_ns).all()
    size = sum(getattr(graph, name).nbytes for name in graph.__slots__ if hasattr(getattr(graph, name), "nbytes"))
    assert size <= 100 * len(graph) + 1000, "bytes per node"
    for one, length in zip(critical_paths(trace, graph), known.steps_ns.tolist(), strict=True):
        assert sum(one.by_part_ns.values()) == length


@pytest.mark.reference
def test_recorded_waits_between_streams_are_edges() -> None:
    # Recorded with CUPTI's synchronization events: a product on stream 24 waits for one on stream 20.
    trace, known, _ = opened(PEER / "cuda_event_sync_multi_stream" / "event_sync_trace.json.gz")
    graph = known.graph
    [edge] = np.flatnonzero(graph.edge == Edge.WAIT)
    streams = [int(trace.device_events.stream[graph.row[node[edge]]]) for node in (graph.src, graph.dst)]
    assert streams == [20, 24]


@pytest.mark.reference
def test_what_the_peer_marks_as_critical_is_critical() -> None:
    """Of the device time that HolisticTraceAnalysis puts on its path of the same trace at least 95 % is on ours."""
    overlaid = PEER / "end_to_end" / "simple_add" / "output" / "overlaid_critical_path_trace.json.gz"
    with gzip.open(overlaid) as file:
        events = json.load(file)["traceEvents"]
    device = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    theirs = {event["args"]["correlation"]: event["dur"] for event in device if event["args"].get("critical")}
    trace, known, _ = opened(overlaid)
    [path] = critical_paths(trace, known.graph)
    ours = set(trace.device_events.correlation[path.event[path.event >= 0]].tolist())
    assert theirs
    shared = sum(dur for correlation, dur in theirs.items() if correlation in ours)
    assert shared >= 0.95 * sum(theirs.values())
