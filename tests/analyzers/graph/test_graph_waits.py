"""What calls and streams wait for: as recorded, else by the order of calls and the times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from device_trace import DeviceTrace

from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.simulation.dependency_graph import DependencyGraph
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.graph.model import Edge, Graph, Node
from tightship_analyzers.graph.streams import MAX_STREAMS
from tightship_analyzers.graph.waits import FULL_QUEUE
from tightship_analyzers.metrics.queue_length import queue_length
from tightship_analyzers.trace.copy_memory import STAGED_BYTES
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.not_applicable import NotApplicable

END = 1_000_000


@pytest.fixture
def made() -> DeviceTrace:
    trace = DeviceTrace()
    trace.step(0, 0, END)
    trace.step(1, END, END + 10)
    return trace


def graph_of(made: DeviceTrace, folder: Path) -> tuple[Trace, DependencyGraph]:
    trace = made.read(folder)
    return trace, Facts(trace)[DependencyGraph]


def awaited(trace: Trace, graph: Graph, call: str, kind: Edge = Edge.SYNC) -> list[str]:
    """Names of the device events that calls of this name wait for."""
    found = []
    for edge in np.flatnonzero(graph.edge == kind):
        row = int(graph.row[graph.dst[edge]])
        if trace.names[int(trace.launches.name[row])] == call:
            found.append(trace.names[int(trace.device_events.name[graph.row[graph.src[edge]]])])
    return sorted(found)


def two_streams(made: DeviceTrace) -> None:
    made.pair((1_000, 5_000), (10_000, 100_000), name="long", stream=7)
    made.pair((6_000, 9_000), (12_000, 60_000), name="short", stream=20)


def recorded(made: DeviceTrace, name: str, call: int, stream: int, *, wait_stream: int = -1, record: int = -1) -> None:
    args = {"device": 0, "stream": stream, "correlation": call, "wait_on_stream": wait_stream}
    made.add_ns("cuda_sync", name, 20_000, 21_000, pid=0, tid=7, **args, wait_on_cuda_event_record_corr_id=record)


def test_a_device_sync_waits_for_all_streams(made: DeviceTrace, tmp_path: Path) -> None:
    two_streams(made)
    made.call(20_000, 105_000, name="cudaDeviceSynchronize")
    trace, known = graph_of(made, tmp_path)
    assert awaited(trace, known.graph, "cudaDeviceSynchronize") == ["long", "short"]


def test_a_stream_sync_waits_for_what_ended_while_it_lasted(made: DeviceTrace, tmp_path: Path) -> None:
    two_streams(made)
    made.call(20_000, 65_000, name="cudaStreamSynchronize")
    trace, known = graph_of(made, tmp_path)
    assert awaited(trace, known.graph, "cudaStreamSynchronize") == ["short"], "the long one had not ended"


def test_a_stream_sync_waited_for_nothing_that_began_after_its_return(made: DeviceTrace, tmp_path: Path) -> None:
    made.pair((1_000, 5_000), (24_500, 25_500), name="later")
    made.call(20_000, 24_000, name="cudaStreamSynchronize")
    trace, known = graph_of(made, tmp_path)
    assert awaited(trace, known.graph, "cudaStreamSynchronize") == []
    assert known.mean_error_frac == 0, "the call takes its time all the same"


def test_a_recorded_sync_waits_for_its_stream(made: DeviceTrace, tmp_path: Path) -> None:
    two_streams(made)
    call = made.call(20_000, 105_000, name="cudaStreamSynchronize")
    recorded(made, "Stream Sync", call, 20)
    trace, known = graph_of(made, tmp_path)
    assert awaited(trace, known.graph, "cudaStreamSynchronize") == ["short"]


def test_a_recorded_event_sync_waits_for_what_was_launched_before_the_event(made: DeviceTrace, tmp_path: Path) -> None:
    made.pair((1_000, 2_000), (10_000, 20_000), name="before")
    record = made.call(3_000, 4_000, name="cudaEventRecord")
    made.pair((5_000, 6_000), (21_000, 24_000), name="after")
    call = made.call(10_000, 26_000, name="cudaEventSynchronize")
    recorded(made, "Event Sync", call, -1, wait_stream=7, record=record)
    trace, known = graph_of(made, tmp_path)
    assert awaited(trace, known.graph, "cudaEventSynchronize") == ["before"]


def test_an_event_sync_that_did_not_wait_says_nothing(made: DeviceTrace, tmp_path: Path) -> None:
    made.pair((1_000, 2_000), (10_000, 20_000), name="kernel")
    made.call(50_000, 52_000, name="cudaEventSynchronize")
    trace, known = graph_of(made, tmp_path)
    assert awaited(trace, known.graph, "cudaEventSynchronize") == []


@pytest.mark.parametrize(
    ("size", "held"), [(STAGED_BYTES, []), (STAGED_BYTES + 1, ["Memcpy HtoD (Pageable -> Device)"])]
)
def test_a_large_upload_from_pageable_memory_holds_the_host(
    made: DeviceTrace, tmp_path: Path, size: int, held: list[str]
) -> None:
    made.pair((1_000, 2_000), (10_000, 60_000), name="kernel")
    link = made.call(20_000, 98_000, name="cudaMemcpyAsync")
    made.copy(61_000, 100_000, name="Memcpy HtoD (Pageable -> Device)", link=link, bytes=size)
    trace, known = graph_of(made, tmp_path)
    assert awaited(trace, known.graph, "cudaMemcpyAsync") == held
    assert known.mean_error_frac == 0


def test_a_pinned_copy_holds_nobody(made: DeviceTrace, tmp_path: Path) -> None:
    link = made.call(20_000, 98_000, name="cudaMemcpyAsync")
    made.copy(25_000, 90_000, link=link, bytes=10 * STAGED_BYTES)
    trace, known = graph_of(made, tmp_path)
    assert awaited(trace, known.graph, "cudaMemcpyAsync") == []


def test_a_full_queue_holds_launches_back(made: DeviceTrace, tmp_path: Path) -> None:
    # Each kernel takes longer than its launch, until the queue is full: then launches keep the device's pace.
    now, free = 0, 5_000
    starts: list[int] = []
    for number in range(FULL_QUEUE + 200):
        end = now + 500
        if number > FULL_QUEUE + 1:
            end = max(end, starts[number - FULL_QUEUE - 1] + 100)
        starts.append(max(free, now + 400))
        made.pair((now, end), (starts[-1], starts[-1] + 40_000), name="kernel")
        free, now = starts[-1] + 40_000, end
    made.events = [event for event in made.events if not event["name"].startswith("ProfilerStep")]
    made.step(0, 0, now)
    made.step(1, now, now + 10)
    trace, known = graph_of(made, tmp_path)
    assert int((known.graph.edge == Edge.QUEUE).sum()) > 150
    assert known.mean_error_frac == 0
    faster = known.saved_ns(Edits.without_device(np.arange(len(trace.device_events)), 0.5))
    assert int(faster[0]) == pytest.approx(len(starts) * 20_000, rel=0.02)


def test_many_kernels_of_a_graph_do_not_fill_the_queue(made: DeviceTrace, tmp_path: Path) -> None:
    """Launching a graph takes the host 50 µs, whatever the device does."""
    now = 0
    for _ in range(8):
        link = made.call(now, now + 50_000, name="cudaGraphLaunch")
        for number in range(600):
            made.on_device(now + 40_000 + number * 100, now + 40_090 + number * 100, link=link)
        now += 55_000
    trace, known = graph_of(made, tmp_path)
    assert not (known.graph.edge == Edge.QUEUE).any()
    assert known.mean_error_frac == 0
    queues = queue_length(trace)
    assert not isinstance(queues, NotApplicable)
    assert [queue.summary.max for queue in queues] == [1]
    assert [queue.full_ns() for queue in queues] == [0]


def test_a_stream_waits_for_what_was_launched_on_the_other_one(made: DeviceTrace, tmp_path: Path) -> None:
    made.pair((1_000, 2_000), (10_000, 80_000), name="gemm", stream=7)
    made.call(3_000, 4_000, name="cudaStreamWaitEvent")
    made.pair((5_000, 6_000), (81_000, 90_000), name="reduce", stream=20)
    trace, known = graph_of(made, tmp_path)
    [edge] = np.flatnonzero(known.graph.edge == Edge.WAIT)
    names = [
        trace.names[int(trace.device_events.name[known.graph.row[node[edge]]])]
        for node in (known.graph.src, known.graph.dst)
    ]
    assert names == ["gemm", "reduce"]


def test_what_still_ran_was_not_waited_for(made: DeviceTrace, tmp_path: Path) -> None:
    made.pair((1_000, 2_000), (10_000, 80_000), name="gemm", stream=7)
    made.call(3_000, 4_000, name="cudaStreamWaitEvent")
    made.pair((5_000, 6_000), (15_000, 90_000), name="copy", stream=20)
    _, known = graph_of(made, tmp_path)
    assert not (known.graph.edge == Edge.WAIT).any()


def test_without_a_call_only_the_times_tell_of_a_wait(made: DeviceTrace, tmp_path: Path) -> None:
    made.pair((1_000, 2_000), (10_000, 180_000), name="gemm", stream=7)
    made.pair((5_000, 6_000), (181_000, 190_000), name="reduce", stream=20)
    _, known = graph_of(made, tmp_path)
    assert known.graph.counts.inferred == 1
    assert known.unexplained_ns == 0


def test_gaps_in_a_cuda_graph_are_its_own(made: DeviceTrace, tmp_path: Path) -> None:
    link = made.call(1_000, 9_000, name="cudaGraphLaunch")
    for start in (10_000, 200_000, 400_000):
        made.on_device(start, start + 5_000, link=link)
    made.call(500_000, 502_000, name="cudaDeviceSynchronize")
    _, known = graph_of(made, tmp_path)
    assert known.unexplained_ns == 0 and known.drift_frac == 0


def test_a_blocked_call_keeps_its_own_time_when_the_wait_goes(made: DeviceTrace, tmp_path: Path) -> None:
    made.pair((1_000, 2_000), (10_000, 300_000))
    made.call(20_000, 303_000, name="cudaDeviceSynchronize")
    made.call(400_000, 402_000, name="cudaDeviceSynchronize")
    _, known = graph_of(made, tmp_path)
    saved = known.saved_ns(Edits.without_device([0], 0.0))
    assert int(saved[0]) == 303_000 - 22_000, "what the second call took, for it did not wait"
    blocks = known.graph.node == Node.BLOCK
    assert int(blocks.sum()) == 2


def test_thousands_of_streams_and_calls_stay_cheap(made: DeviceTrace, tmp_path: Path) -> None:
    for number in range(3_000):
        made.pair((10 * number, 10 * number + 5), (50_000 + 10 * number, 50_000 + 10 * number + 9), stream=number)
        made.call(100_000 + 10 * number, 100_000 + 10 * number + 5, name="cudaDeviceSynchronize")
    _, known = graph_of(made, tmp_path)
    assert int((known.graph.edge == Edge.SYNC).sum()) <= 3_000 * MAX_STREAMS
    assert known.graph.counts.contradicted == 0
