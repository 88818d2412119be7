"""Causes sum to idle time exactly, whatever is in the trace."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from device_trace import DeviceTrace
from examples import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from recordings import ANY, MADE
from reference_data import TRACES, trace_paths

from tightship_analyzers import trace as traces
from tightship_analyzers.facts.activity.device_busy import DeviceBusy, DeviceGaps
from tightship_analyzers.facts.idle.causes import Attributed, Cause, ExposedCommunication, IdleCauses
from tightship_analyzers.facts.memo import Facts, NotApplicable
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.metrics.step_filter import without_last_step
from tightship_analyzers.metrics.temporal import temporal_breakdown
from tightship_analyzers.trace.columns import Bools
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Trace
from tightship_analyzers.trace.open_rows import OpenRows

MAX_NS = 60_000
THREADS = (100, 101, 102)

spans = st.tuples(st.integers(0, MAX_NS), st.integers(0, MAX_NS)).map(lambda ends: (min(ends), max(ends)))
host_events = st.tuples(
    spans,
    st.sampled_from(
        [
            ("cpu_op", "aten::mm"),
            ("cpu_op", "aten::item"),
            ("cpu_op", "autograd::engine::evaluate_function: MmBackward0"),
            ("cpu_op", "x (dynamo_timed)"),
            ("user_annotation", "enumerate(DataLoader)#x.__next__"),
            ("user_annotation", "gloo:all_reduce"),
            ("user_annotation", "## forward ##"),
            ("python_function", "train.py(3): main"),
            ("python_function", "Python GC"),
            ("python_function", "torch/serialization.py(9): save"),
            ("python_function", "nn.Module: Net_0"),
            ("overhead", "Lazy Function Loading"),
        ]
    ),
    st.sampled_from(THREADS),
    st.integers(-1, 4),
)
calls = st.tuples(
    spans,
    st.sampled_from(["cudaLaunchKernel", "cudaStreamSynchronize", "cudaMemcpyAsync", "cudaMemcpy", "cudaMalloc"]),
    st.sampled_from(THREADS),
)
device_events = st.tuples(
    spans,
    st.sampled_from(["gemm", "ncclDevKernel_AllReduce", "Memcpy HtoD (Pageable -> Device)"]),
    st.sampled_from([7, 20]),
    st.integers(0, 12),
)


def made(host: list[object], launches: list[object], device: list[object], steps: list[int]) -> DeviceTrace:
    trace = DeviceTrace()
    for (start, end), (category, name), thread, seq in host:  # type: ignore[misc]
        trace.host(name, start, end, category=category, thread=thread, **{"Sequence number": seq})
    for link, ((start, end), name, thread) in enumerate(launches, start=1):  # type: ignore[misc]
        trace.call(start, end, name=name, thread=thread, link=link)
    for (start, end), name, stream, link in device:  # type: ignore[misc]
        category = "gpu_memcpy" if name.startswith("Mem") else "kernel"
        trace.on_device(start, end, name=name, stream=stream, link=link or -1, category=category)
    for number, (start, end) in enumerate(pairwise(steps)):
        trace.step(number, start, end)
    return trace


def assert_conserved(trace: Trace) -> Facts:
    """The whole, per step, per cause and place, and over the kernel span: each equals what it is a part of."""
    facts = Facts(trace)
    idle = facts.get(IdleCauses)
    if isinstance(idle, NotApplicable):
        assert isinstance(facts.get(Window), NotApplicable)
        return facts
    assert_sound(idle.everywhere)
    assert idle.window.spans() == facts[DeviceGaps].spans
    assert_sound(idle.window)
    steps = facts.find(Steps)
    if steps is not None:
        assert sum(idle.of_step(row).measure_ns for row in range(steps.count)) == idle.window.measure_ns
    for counted in (trace, without_last_step(trace)):
        span = temporal_breakdown(counted)
        if not isinstance(span, NotApplicable):
            assert sum(row.ns for row in idle.of_kernel_span(counted).as_rows()) == span.idle_ns
            assert_sound(idle.of_kernel_span(counted))
    exposed = facts.get(ExposedCommunication)
    if not isinstance(exposed, NotApplicable):
        busy = facts[DeviceBusy]
        assert exposed.window.spans() == busy.communication - busy.compute
        if steps is not None:
            assert sum(exposed.of_step(row).measure_ns for row in range(steps.count)) == exposed.window.measure_ns
        assert_sound(exposed.window)
    return facts


def assert_sound(time: Attributed) -> None:
    """Disjoint, in order, nothing empty; the sums agree."""
    assert (time.end_ns > time.start_ns).all()
    assert (time.start_ns[1:] >= time.end_ns[:-1]).all()
    assert time.spans().measure_ns == time.measure_ns == sum(time.by_cause().values())
    assert sum(row.ns for row in time.rows()) == time.measure_ns
    assert all(row.ns > 0 for row in time.rows())
    assert len({(row.cause, row.place) for row in time.rows()}) == len(time.rows())


@examples(150)
@given(
    st.lists(host_events, max_size=12),
    st.lists(calls, max_size=12),
    st.lists(device_events, max_size=12),
    st.lists(st.integers(0, MAX_NS), max_size=4).map(sorted),
)
def test_any_trace(host: list[object], launches: list[object], device: list[object], steps: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert_conserved(made(host, launches, device, steps).read(Path(folder)))


@pytest.mark.parametrize("name", ["cudaLaunchKernel", "cudaMemcpy"])
def test_more_threads_than_are_looked_at(tmp_path: Path, name: str) -> None:
    trace = DeviceTrace()
    for number in range(3_000):
        begin, thread = 100 * number, 1_000 + number
        trace.host("autograd::engine::evaluate_function: MmBackward0", begin, begin + 9, thread=thread)
        trace.on_device(begin + 60, begin + 70, link=trace.call(begin, begin + 5, name=name, thread=thread))
    assert_conserved(trace.read(tmp_path))


def test_deeper_calls_than_any_stack(tmp_path: Path) -> None:
    trace = DeviceTrace()
    for number in range(5_000):
        trace.host(f"nn.Module: M_{number}", number, 20_000 - number, category="python_function")
        trace.host("op", number, 20_000 - number)
    trace.pair((9_000, 9_001), (9_003, 9_004))
    facts = assert_conserved(trace.read(tmp_path))
    assert max(len(row.place.module) for row in facts[IdleCauses].window.rows()) == 200


@examples(300)
@given(st.lists(spans, max_size=30), st.lists(st.integers(-5, MAX_NS + 5), min_size=1, max_size=20))
def test_the_innermost_row_by_brute_force(rows: list[tuple[int, int]], moments: list[int]) -> None:
    rows = sorted(rows, key=lambda row: (row[0], -row[1]))
    start, end = (np.array(column, dtype=np.int64) for column in (zip(*rows, strict=True) if rows else ([], [])))
    found = OpenRows.of(start, end).at(np.array(moments, dtype=np.int64)).tolist()
    assert found == [innermost(rows, moment) for moment in moments]


def innermost(rows: list[tuple[int, int]], moment: int) -> int:
    """The call stack of that moment, replayed."""
    stack: list[tuple[int, int]] = []
    for number, (start, end) in enumerate(rows):
        if start > moment:
            break
        stack = [(row, until) for row, until in stack if until > start]
        if end > start:
            stack.append((number, min([end, *(until for _, until in stack)])))
    return next((row for row, until in reversed(stack) if until > moment), -1)


@pytest.mark.parametrize("recording", ANY, indirect=True)
def test_reference_traces(recording: Path) -> None:
    trace = traces.open(recording)
    facts = assert_conserved(trace)
    idle = facts[IdleCauses].window
    # Where the launches are missing nobody knows what the device waited for.
    if len(trace.frames) and "missing" not in recording.name:
        unexplained = idle.by_cause().get(Cause.UNEXPLAINED, 0)
        assert unexplained <= 0.05 * idle.measure_ns


@pytest.mark.reference
def test_a_real_starved_gpu_waits_for_input() -> None:
    facts = Facts(traces.open(TRACES / "param" / "resnet_kineto.json.gz"))
    idle = facts[IdleCauses].window
    assert idle.by_cause()[Cause.INPUT] > 0.9 * idle.measure_ns
    assert idle.rows()[0].place.operator.startswith("enumerate(DataLoader)#")


@pytest.mark.reference
def test_a_real_launch_bound_gpu_waits_for_dispatch_at_a_line() -> None:
    facts = Facts(traces.open(TRACES / "tracelens" / "b200" / "eager_trace.json.gz"))
    idle = facts[IdleCauses].window
    assert idle.by_cause()[Cause.HOST_DISPATCH] > 0.85 * idle.measure_ns
    placed = sum(row.ns for row in idle.rows() if row.place.frame)
    assert placed > 0.9 * idle.measure_ns
    assert Intervals.none() == idle.spans(Cause.INPUT)


DAMAGED = ("mi300/resnet_act_checkpoint", "trace_filter/sampled_rank-0", "mtia_inference_rank_0", "alexnet/benchmark")


def mutated(trace: Trace, chance: np.random.Generator) -> Trace:
    """The trace without a random part of its rows and launches, and with the device's clock out of step."""

    def some(rows: int, *shares: float) -> Bools:
        return chance.random(rows) < chance.choice(shares)

    kept_calls = some(len(trace.launches), 0, 0.5, 0.95, 1)
    events = trace.device_events.take(some(len(trace.device_events), 0.05, 0.5, 0.95, 1))
    new_row = np.append(np.where(kept_calls, np.cumsum(kept_calls) - 1, -1), -1)
    shift_ns = int(chance.choice([0, 100_000, -100_000, 5_000_000]))
    tables = ("host_ops", "annotations", "frames", "overheads")
    return replace(
        trace,
        **{name: (table := getattr(trace, name)).take(some(len(table), 0, 0.3, 0.9, 1)) for name in tables},
        launches=trace.launches.take(kept_calls),
        device_events=replace(
            events,
            launch=new_row[events.launch],
            start_ns=events.start_ns + shift_ns,
            end_ns=events.end_ns + shift_ns,
        ),
        device_kind="gpu" if len(events) else "cpu",
        collectives=trace.collectives.take(np.zeros(len(trace.collectives), dtype=np.bool_)),
    )


@cache
def opened(path: Path) -> Trace:
    return traces.open(path)


@pytest.mark.parametrize("name", MADE)
@examples(6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
def test_damaged_traces(made_recordings: dict[str, Path], name: str, seed: int) -> None:
    assert_conserved(mutated(opened(made_recordings[name]), np.random.default_rng(seed)))


@pytest.mark.reference
@pytest.mark.parametrize("name", DAMAGED)
@examples(6)
@given(seed=st.integers(0, 2**32 - 1))
def test_damaged_reference_traces(name: str, seed: int) -> None:
    path = next(path for path in trace_paths() if name in str(path))
    assert_conserved(mutated(opened(path), np.random.default_rng(seed)))
