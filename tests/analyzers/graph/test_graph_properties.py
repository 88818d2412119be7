"""What holds for the graph of any trace, however strange."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from device_trace import DeviceTrace
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from made_trace import BACKWARD, MAIN

from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.simulation.dependency_graph import DependencyGraph
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.graph.critical_path import critical_paths
from tightship_analyzers.graph.device_edges import PLAUSIBLE_NS
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.graph.model import Edge, Graph
from tightship_analyzers.graph.simulate import simulate
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Trace

END = 100_000
CALLS = (
    "cudaLaunchKernel",
    "cudaMemcpyAsync",
    "cudaMemcpy",
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cudaStreamWaitEvent",
    "cudaGraphLaunch",
    "hipMemcpyWithStream",
    "cudaFree",
)
TIMES = st.tuples(st.integers(0, END), st.integers(0, 3_000))
EVENTS = st.one_of(
    st.tuples(st.just("op"), TIMES, st.sampled_from([MAIN, BACKWARD]), st.booleans()),
    st.tuples(
        st.just("call"), TIMES, st.sampled_from([MAIN, BACKWARD, 102]), st.sampled_from(CALLS), st.integers(0, 9)
    ),
    st.tuples(st.just("kernel"), TIMES, st.sampled_from([7, 20, 21]), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("sync"), TIMES, st.integers(0, 9), st.integers(-1, 9), st.sampled_from([-1, 7, 20])),
)


def _is_judged(events: list[tuple[Any, ...]]) -> bool:
    """Calls that give a device work, of which nothing is seen, are those of a file that was cut off."""
    kinds = {kind for kind, *_ in events}
    return "kernel" in kinds or "call" not in kinds


RECORDINGS = st.lists(EVENTS, max_size=40).filter(_is_judged)


def made(events: list[tuple[Any, ...]]) -> DeviceTrace:
    """Events at any times: kernels before their launches, nested calls, correlations used twice."""
    trace = DeviceTrace()
    trace.host("aten::first", 0, 1)
    trace.step(0, 0, END // 2)
    trace.step(1, END // 2, END)
    trace.step(2, END, END + 10)
    for kind, (start, length), *rest in events:
        if kind == "op":
            name = "autograd::engine::evaluate_function: X" if rest[0] == BACKWARD and rest[1] else "aten::op"
            trace.host(name, start, start + length, thread=rest[0])
        elif kind == "call":
            trace.call(start, start + length, thread=rest[0], name=rest[1], link=rest[2])
        elif kind == "kernel":
            name = "Memcpy DtoH (Device -> Pageable)" if rest[2] else "gemm"
            trace.on_device(start, start + length, stream=rest[0], link=rest[1], name=name)
        else:
            args = {"device": 0, "stream": rest[2], "correlation": rest[0], "wait_on_stream": 7}
            args["wait_on_cuda_event_record_corr_id"] = rest[1]
            name = "Stream Wait Event" if rest[2] >= 0 else "Event Sync"
            trace.add_ns("cuda_sync", name, start, start + length, pid=0, tid=7, **args)
    return trace


def opened(events: list[tuple[Any, ...]]) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        return made(events).read(Path(folder))


def reached_ns(graph: Graph) -> np.ndarray:
    """When each node is due by its measured causes, excess included."""
    delay = np.where(graph.of_end, graph.dur_ns[graph.src] + graph.lag_ns, graph.lag_ns) + graph.excess_ns
    due = np.zeros(len(graph), dtype=np.int64)
    np.maximum.at(due, graph.dst, graph.time_ns[graph.src] + np.maximum(delay, 0))
    return due


@given(RECORDINGS)
@examples(150)
def test_causes_come_first_and_explain_every_node(events: list[tuple[Any, ...]]) -> None:
    known = Facts(opened(events))[DependencyGraph]
    graph, unchanged = known.graph, known.unchanged
    assert (graph.src < graph.dst).all(), "so there is no circle"
    assert (np.diff(graph.dst) >= 0).all()
    assert set(range(1, len(graph))) == set(graph.dst.tolist()), "every node but the root has a cause"
    assert (np.diff(graph.time_ns) >= 0).all()
    assert (graph.excess_ns >= 0).all()
    assert (reached_ns(graph) <= graph.time_ns).all(), "no cause asks for more than was measured"
    assert (unchanged.time_ns <= graph.time_ns).all(), "a run waits for nothing that was not there"
    assert (unchanged.time_ns >= 0).all()
    if not graph.excess_ns.any() and not graph.counts.contradicted:
        assert (np.diff(unchanged.bounds_ns) >= 0).all()


@given(RECORDINGS, st.data())
@examples(80)
def test_taking_away_never_makes_anything_later(events: list[tuple[Any, ...]], data: st.DataObject) -> None:
    trace = opened(events)
    facts = Facts(trace)
    known, tid = facts[DependencyGraph], facts[Window].tid
    start = trace.start_ns + data.draw(st.integers(0, END))
    spans = Intervals.one(start, start + data.draw(st.integers(1, END)))
    rows = data.draw(st.lists(st.integers(0, max(0, len(trace.device_events) - 1)), max_size=5))
    one = data.draw(st.sampled_from([Edits.without_host(tid, spans), Edits.without_syncs(tid, spans)]))
    other = Edits.without_device(rows, data.draw(st.sampled_from([0.0, 0.5]))) | Edits.launched_together(rows)
    first, second, both = (simulate(known.graph, edits).time_ns for edits in (one, other, one | other))
    assert (first <= known.unchanged.time_ns).all()
    assert (second <= known.unchanged.time_ns).all()
    assert (both <= first).all() and (both <= second).all()
    assert (simulate(known.graph, Edits()).time_ns == known.unchanged.time_ns).all()


@given(RECORDINGS)
@examples(80)
def test_a_critical_path_fills_its_step_exactly(events: list[tuple[Any, ...]]) -> None:
    trace = opened(events)
    known = Facts(trace)[DependencyGraph]
    paths = critical_paths(trace, known.graph)
    assert len(paths) == 2
    for path, bound, length in zip(paths, known.recorded.bounds_ns.tolist(), known.steps_ns.tolist(), strict=False):
        assert sum(path.by_part_ns.values()) == length
        at = known.graph.base_ns + bound
        assert path.start_ns.tolist() == [at, *path.end_ns[:-1].tolist()] if length else not len(path.part)
        assert (path.dur_ns > 0).all()
        assert sum(path.operators(trace).values()) <= length
        assert sum(path.device_events(trace).values()) <= length


def test_an_event_without_its_launch_is_anchored_and_joined_to_nothing() -> None:
    trace = opened(
        [
            ("call", (10_000, 100), MAIN, "cudaLaunchKernel", 4),
            ("kernel", (10_200, 100), 8, 4, False),
            ("kernel", (20_000, 1_000), 7, 5, False),  # what comes before all with a launch is of the time before
        ]
    )
    known = Facts(trace)[DependencyGraph]
    graph = known.graph
    assert graph.counts.unlinked == 1
    node = int(graph.device[1])
    assert [Edge(edge) for edge in graph.edge[graph.dst == node]] == [Edge.ANCHOR]
    assert known.unchanged.time_ns[node] == graph.time_ns[node]
    assert known.distrust is not None and "lacks the launch" in known.distrust


def test_waiting_without_a_cause_is_no_slack_but_an_error() -> None:
    trace = opened(
        [
            ("call", (51_000, 100), MAIN, "cudaLaunchKernel", 1),
            # 44 µs after its call had returned, with nothing to wait for.
            ("kernel", (95_100, 500), 7, 1, False),
            ("call", (52_000, 44_000), MAIN, "cudaDeviceSynchronize", 4),
        ]
    )
    known = Facts(trace)[DependencyGraph]
    assert known.unexplained_ns == 44_000 - PLAUSIBLE_NS
    assert known.error_frac.tolist() == [0, known.unexplained_ns / (END - END // 2)]
    assert "no cause" in (known.distrust or "")


def test_an_effect_before_its_cause_is_left_out_and_counted() -> None:
    trace = opened([("call", (30_000, 100), MAIN, "cudaLaunchKernel", 1), ("kernel", (10_000, 500), 7, 1, False)])
    graph = Facts(trace)[DependencyGraph].graph
    assert graph.counts.contradicted == 1
    [node] = graph.device
    assert [Edge(edge) for edge in graph.edge[graph.dst == node]] == [Edge.ANCHOR]


def test_many_calls_of_one_microsecond_keep_their_order() -> None:
    trace = opened([("call", (7_000, 0), MAIN, "cudaStreamSynchronize", number) for number in range(300)])
    graph = Facts(trace)[DependencyGraph].graph
    assert graph.counts.contradicted == 0
    assert int((graph.edge == Edge.HOST).sum()) == len(graph) - 2, "one thread, in one chain after its first point"


def test_a_trace_without_a_device_is_its_threads(tmp_path: Path) -> None:
    trace = DeviceTrace()
    for number in range(4):
        trace.step(number, number * 10_000, (number + 1) * 10_000)
        trace.host("aten::mm", number * 10_000 + 100, number * 10_000 + 4_000)
    facts = Facts(trace.read(tmp_path))
    known = facts[DependencyGraph]
    assert known.mean_error_frac == 0 and known.distrust is None
    begin = known.graph.base_ns
    edits = Edits.without_host(facts[Window].tid, Intervals.one(begin + 11_000, begin + 13_000))
    assert known.saved_ns(edits).tolist() == [0, 2_000, 0]
