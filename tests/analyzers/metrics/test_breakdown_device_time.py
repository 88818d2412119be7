"""Step filter, classes, temporal breakdown, overlap, kernel tables and idle time on small traces made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_trace import DeviceTrace, moment
from hypothesis import given
from hypothesis import strategies as st

from tightship_analyzers.metrics.duration_stats import DurationStats, grouped
from tightship_analyzers.metrics.idle import KERNEL_WAIT_NS, IdleKind, idle_by_stream
from tightship_analyzers.metrics.kernel_classes import Evidence, KernelClass, Scheme, kernel_classes
from tightship_analyzers.metrics.kernels import kernel_names, kernel_types
from tightship_analyzers.metrics.launching_ops import innermost
from tightship_analyzers.metrics.overlap import overlap
from tightship_analyzers.metrics.step_filter import last_step, without_last_step
from tightship_analyzers.metrics.temporal import temporal_breakdown
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.not_applicable import NotApplicable

COMPUTE, COMMUNICATION, MEMORY = KernelClass.COMPUTE, KernelClass.COMMUNICATION, KernelClass.MEMORY


def two_steps() -> DeviceTrace:
    made = DeviceTrace()
    made.step(1, 0, 1000)
    made.step(2, 1000, 2000)
    made.host("aten::mm", 100, 300)
    made.host("aten::mm", 1000, 1200)
    made.pair((150, 160), (200, 1500))
    # Launched in the first step, run in the second: it belongs to the first.
    made.pair((999, 1005), (1500, 1600))
    made.pair((1000, 1010), (1600, 1700))
    made.on_device(300, 400, link=99)
    made.memory(999, 64)
    made.memory(1000, 64)
    return made


def test_the_last_step_goes_with_what_it_launched(tmp_path: Path) -> None:
    whole = two_steps().read(tmp_path)
    assert last_step(whole) == ("ProfilerStep#2", moment(1000))
    kept = without_last_step(whole)
    assert (kept.device_events.start_ns - moment(0)).tolist() == [200, 1500]
    assert (kept.launches.start_ns - moment(0)).tolist() == [150, 999]
    assert [len(table) for table in (kept.host_ops, kept.annotations, kept.memory_events)] == [1, 1, 1]
    assert kept.end_ns == moment(1600)
    assert without_last_step(kept) is kept
    breakdown = temporal_breakdown(kept)
    assert not isinstance(breakdown, NotApplicable) and breakdown.kernel_span_ns == 1400


def test_a_correlation_that_is_used_twice_stays_with_the_step_that_stays(tmp_path: Path) -> None:
    made = two_steps()
    made.call(800, 810, link=50)
    made.call(1100, 1110, link=50)
    made.on_device(1800, 1900, link=50)
    whole = made.read(tmp_path)
    assert whole.launches.start_ns[whole.device_events.launch[-1]] == moment(1100)
    kept = without_last_step(whole)
    assert kept.launches.start_ns[kept.device_events.launch[-1]] == moment(800)


def test_collectives_follow_their_events(tmp_path: Path) -> None:
    made = DeviceTrace()
    made.step(1, 0, 1000)
    made.step(2, 1000, 2000)
    reported = {"Collective name": "allreduce", "Group size": 2}
    link = made.call(1100, 1110)
    made.on_device(10, 20, name="ncclDevKernel", link=link, **reported)
    made.pair((100, 110), (200, 300), name="ncclDevKernel", **reported)
    made.host("record_param_comms", 90, 120, **reported)
    made.host("record_param_comms", 1090, 1120, **reported)
    kept = without_last_step(made.read(tmp_path))
    rows = kept.collectives
    assert len(rows) == 2 and sorted(rows.on_device.tolist()) == [False, True]
    assert kept.device_events.start_ns[rows.row[rows.on_device]].tolist() == [moment(200)]
    assert kept.host_ops.start_ns[rows.row[~rows.on_device]].tolist() == [moment(90)]


def busy(tmp_path: Path) -> Trace:
    """Compute 0–100 and 150–250, communication 80–180, a copy 240–300; idle 300–400; a set 400–410."""
    made = DeviceTrace()
    made.on_device(0, 100)
    made.on_device(150, 250, name="relu")
    made.on_device(80, 180, name="ncclDevKernel_AllReduce_Sum_f32", stream=20)
    made.copy(240, 300, stream=21)
    made.on_device(400, 410, name="Memset (Device)", category="gpu_memset")
    return made.read(tmp_path)


def test_temporal_breakdown_and_overlap(tmp_path: Path) -> None:
    trace = busy(tmp_path)
    breakdown = temporal_breakdown(trace)
    assert not isinstance(breakdown, NotApplicable)
    assert (breakdown.kernel_span_ns, breakdown.idle_ns) == (410, 100)
    assert (breakdown.compute_ns, breakdown.non_compute_ns) == (200, 110)
    shared = overlap(trace)
    assert not isinstance(shared, NotApplicable)
    assert (shared.comm_ns, shared.overlapped_ns, shared.exposed_ns, shared.overlapped_frac) == (100, 50, 50, 0.5)


def test_kernels_by_type_and_by_name(tmp_path: Path) -> None:
    trace = busy(tmp_path)
    types = kernel_types(trace)
    assert not isinstance(types, NotApplicable)
    assert types.running_ns == {
        (COMPUTE,): 140,
        (COMMUNICATION,): 50,
        (MEMORY,): 60,
        (COMPUTE, COMMUNICATION): 50,
        (COMPUTE, MEMORY): 10,
        (COMMUNICATION, MEMORY): 0,
        (COMPUTE, COMMUNICATION, MEMORY): 0,
    }
    assert types.inferred == 1
    assert {kind: (stats.count, stats.sum_ns) for kind, stats in types.duration.items()} == {
        COMPUTE: (2, 200),
        COMMUNICATION: (1, 100),
        MEMORY: (2, 70),
    }
    names = kernel_names(trace)
    assert not isinstance(names, NotApplicable)
    assert [(row.name, row.type, row.duration.sum_ns, row.unlinked) for row in names] == [
        ("gemm", COMPUTE, 100, 1),
        ("ncclDevKernel_AllReduce_Sum_f32", COMMUNICATION, 100, 1),
        ("relu", COMPUTE, 100, 1),
        ("Memcpy HtoD (Pinned -> Device)", MEMORY, 60, 1),
        ("Memset (Device)", MEMORY, 10, 1),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "mscclKernel_Sum_half_Simple_false(ncclDevComm*)",
        "void deep_ep::internode::dispatch<false, 1, 2>(int4*)",
        "nvshmemi_transfer_rma",
        "ucc_tl_cuda_reduce",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16>",
    ],
)
def test_communication_is_known_by_more_than_nccl(tmp_path: Path, name: str) -> None:
    """The peer calls all but the first of these computation."""
    made = DeviceTrace()
    made.on_device(0, 100, name=name)
    made.on_device(50, 150)
    classes = kernel_classes(made.read(tmp_path))
    assert classes.recognised.tolist() == [COMMUNICATION, COMPUTE]
    assert (classes.inferred, classes.evidence.tolist()) == (1, [Evidence.NAME, Evidence.NONE])
    assert classes.differing == (0 if name.startswith("nccl") else 1)


def test_communication_is_known_by_arguments_and_links_whatever_its_name(tmp_path: Path) -> None:
    made = DeviceTrace()
    made.on_device(0, 10, name="own_ring", **{"Collective name": "allreduce"})
    made.host("c10d::allreduce_", 100, 200)
    made.host("record_param_comms", 110, 190)
    made.host("aten::copy_", 120, 140)
    made.pair((125, 130), (150, 160), name="elementwise")
    made.pair((150, 155), (170, 180), name="own_tree")
    made.pair((160, 165), (180, 185), name="Memcpy DtoD (Device -> Device)", category="gpu_memcpy")
    made.pair((195, 198), (210, 220), name="own_mesh")
    made.pair((300, 310), (320, 330), name="gemm")
    classes = kernel_classes(made.read(tmp_path))
    expected = [COMMUNICATION, COMPUTE, COMMUNICATION, MEMORY, COMMUNICATION, COMPUTE]
    assert classes.recognised.tolist() == expected
    assert classes.evidence.tolist() == [
        Evidence.ARGUMENTS, Evidence.NONE, Evidence.LINK, Evidence.NONE, Evidence.LINK, Evidence.NONE
    ]  # fmt: skip
    assert (classes.inferred, classes.differing) == (0, 3)


def test_figures_by_either_scheme(tmp_path: Path) -> None:
    made = DeviceTrace()
    made.on_device(0, 100, name="void deep_ep::intranode::combine<8>(int*)", stream=20)
    made.on_device(60, 160)
    trace = made.read(tmp_path)
    ours, theirs = (temporal_breakdown(trace, scheme=scheme) for scheme in (Scheme.RECOGNISED, Scheme.PATTERNS))
    assert not isinstance(ours, NotApplicable) and not isinstance(theirs, NotApplicable)
    assert (ours.compute_ns, ours.non_compute_ns) == (100, 60)
    assert (theirs.compute_ns, theirs.non_compute_ns) == (160, 0)
    known = kernel_classes(trace)
    assert temporal_breakdown(trace, classes=known) == ours
    shared = overlap(trace, classes=known)
    assert not isinstance(shared, NotApplicable) and (shared.comm_ns, shared.overlapped_ns) == (100, 40)


def test_a_kernel_that_has_sync_or_memcpy_in_its_name_computes(tmp_path: Path) -> None:
    """The peer drops such kernels from its tables: its classes leave them over."""
    made = DeviceTrace()
    made.on_device(0, 70, name="void SyncBatchNormForward<float>(float*)")
    made.on_device(100, 130, name="fused_Memcpy_gelu")
    trace = made.read(tmp_path)
    breakdown = temporal_breakdown(trace)
    assert not isinstance(breakdown, NotApplicable) and (breakdown.compute_ns, breakdown.non_compute_ns) == (100, 0)


def idle_of(trace: Trace) -> dict[int, tuple[int, int, int]]:
    rows = idle_by_stream(trace)
    assert not isinstance(rows, NotApplicable)
    return {row.stream: (row.host_wait_ns, row.kernel_wait_ns, row.other_ns) for row in rows}


def test_idle_time_by_stream(tmp_path: Path) -> None:
    made = DeviceTrace()
    made.pair((0, 5), (10, 100))
    made.pair((101, 105), (200, 300))  # launched after the stream was empty: 100 of host wait
    made.pair((300, 305), (350, 400))  # launched at the very end, not after it: 50 of kernel wait
    made.pair((310, 315), (400 + KERNEL_WAIT_NS - 1, 40_000))
    made.pair((320, 325), (40_000 + KERNEL_WAIT_NS, 80_000))  # as long as the threshold: other
    made.pair((0, 5), (50, 60), stream=9)
    assert idle_of(made.read(tmp_path)) == {7: (100, 50 + KERNEL_WAIT_NS - 1, KERNEL_WAIT_NS), 9: (0, 0, 0)}


def test_a_negative_gap_is_none(tmp_path: Path) -> None:
    """The peer adds negative gaps up, so that overlapping events take idle time away."""
    made = DeviceTrace()
    made.pair((0, 1), (10, 1000))
    made.pair((2, 3), (100, 200))
    made.pair((4, 5), (900, 950))
    made.pair((6, 7), (1010, 1020))
    assert idle_of(made.read(tmp_path)) == {7: (0, 10, 0)}


def test_an_event_without_its_launch_waited_for_who_knows_what(tmp_path: Path) -> None:
    """The peer joins it to the first event of the trace, which began before everything: never host wait."""
    made = DeviceTrace()
    made.pair((0, 1), (10, 100))
    made.on_device(105, 200, link=77)
    made.pair((150, 151), (203, 300))
    rows = idle_by_stream(made.read(tmp_path))
    assert not isinstance(rows, NotApplicable)
    assert (rows[0].events, rows[0].unlinked) == (3, 1)
    assert (rows[0].host_wait_ns, rows[0].kernel_wait_ns, rows[0].other_ns) == (0, 3, 5)
    assert rows[0].gaps[IdleKind.OTHER] == DurationStats(count=1, sum_ns=5, min_ns=5, max_ns=5, std_ns=0.0)


def test_streams_of_two_devices_are_two_streams(tmp_path: Path) -> None:
    made = DeviceTrace()
    for device in (1, 0):
        made.pair((0, 1), (10, 20), device=device)
        made.pair((30, 31), (40, 50), device=device)
    rows = idle_by_stream(made.read(tmp_path))
    assert not isinstance(rows, NotApplicable)
    assert [(row.device, row.stream, row.host_wait_ns) for row in rows] == [(0, 7, 20), (1, 7, 20)]


def test_nothing_is_rounded(tmp_path: Path) -> None:
    """The peer rounds starts up and ends down to microseconds: such a kernel lasts less than no time there."""
    made = DeviceTrace()
    made.pair((100, 200), (1_100, 1_900))
    made.pair((300, 400), (1_901, 2_903))
    trace = made.read(tmp_path)
    names = kernel_names(trace)
    assert not isinstance(names, NotApplicable)
    assert (names[0].duration.min_ns, names[0].duration.sum_ns) == (800, 1_802)
    breakdown = temporal_breakdown(trace)
    assert not isinstance(breakdown, NotApplicable) and (breakdown.idle_ns, breakdown.compute_ns) == (1, 1_802)


@pytest.mark.parametrize(
    "analysis", [temporal_breakdown, overlap, kernel_types, kernel_names, idle_by_stream], ids=lambda a: a.__name__
)
def test_without_a_device_nothing_is_said(tmp_path: Path, analysis: Any) -> None:
    made = DeviceTrace()
    made.host("aten::add", 0, 10)
    answer = analysis(made.read(tmp_path))
    assert isinstance(answer, NotApplicable) and answer.reason.startswith("needs device events")


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), st.sampled_from((7, 9))), min_size=1, max_size=12)


@given(spans=SPANS, kinds=st.lists(st.sampled_from((COMPUTE, COMMUNICATION, MEMORY)), min_size=12, max_size=12))
def test_times_sum_whatever_overlaps(
    template: Trace, spans: list[tuple[int, int, int]], kinds: list[KernelClass]
) -> None:
    trace = _traced(template, spans, kinds)
    cells = [
        {kind for (start, length, _), kind in zip(spans, kinds, strict=False) if start <= ns < start + length}
        for ns in range(100)
    ]
    begin, end = min(start for start, _, _ in spans), max(start + length for start, length, _ in spans)
    breakdown, types, shared = temporal_breakdown(trace), kernel_types(trace), overlap(trace)
    assert not isinstance(breakdown, NotApplicable) and not isinstance(types, NotApplicable)
    assert not isinstance(shared, NotApplicable)
    assert breakdown.kernel_span_ns == end - begin
    assert breakdown.idle_ns == sum(not cell for cell in cells[begin:end])
    assert breakdown.compute_ns == sum(COMPUTE in cell for cell in cells)
    assert breakdown.idle_ns + breakdown.compute_ns + breakdown.non_compute_ns == breakdown.kernel_span_ns
    for together, ns in types.running_ns.items():
        assert ns == sum(cell == set(together) for cell in cells), together
    assert shared.comm_ns == sum(COMMUNICATION in cell for cell in cells)
    assert shared.overlapped_ns == sum({COMMUNICATION, COMPUTE} <= cell for cell in cells)
    rows = idle_by_stream(trace)
    assert not isinstance(rows, NotApplicable)
    for row in rows:
        own = [(start, start + length) for start, length, stream in spans if stream == row.stream]
        covered = {ns for start, stop in own for ns in range(start, stop)}
        # An event of no duration inside a gap splits it, but takes nothing away.
        inside = range(min(start for start, _ in own), max(start for start, _ in own))
        assert row.host_wait_ns + row.kernel_wait_ns + row.other_ns == sum(ns not in covered for ns in inside)


NAMES = {COMPUTE: "gemm", COMMUNICATION: "ncclDevKernel", MEMORY: "Memset (Device)"}


def _traced(template: Trace, spans: list[tuple[int, int, int]], kinds: list[KernelClass]) -> Trace:
    """Without files: the columns of a made trace, put in place of those of a template."""
    order = sorted(range(len(spans)), key=lambda row: (spans[row][0], -spans[row][1]))
    start = np.array([spans[row][0] for row in order], dtype=np.int64)
    end = start + np.array([spans[row][1] for row in order], dtype=np.int64)
    kinds = [kinds[row] for row in order]
    events = template.device_events
    filler = {name: np.full(len(start), -1, dtype=getattr(events, name).dtype) for name in
              ("correlation", "external_id", "bytes", "transfer_ns", "blocks", "launch", "evidence")}  # fmt: skip
    kind_of = {COMPUTE: 0, COMMUNICATION: 3, MEMORY: 2}
    return replace(
        template,
        device_events=type(events)(
            start_ns=start,
            end_ns=end,
            name=np.array([template.names.id(NAMES[kind]) for kind in kinds], dtype=np.int32),
            device=np.zeros(len(start), dtype=np.int32),
            stream=np.array([spans[row][2] for row in order], dtype=np.int64),
            kind=np.array([kind_of[kind] for kind in kinds], dtype=np.int8),
            **filler,
        ),
    )


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    made = DeviceTrace()
    for name in NAMES.values():
        made.on_device(0, 1, name=name, category="gpu_memset" if name.startswith("Memset") else "kernel")
    return made.read(tmp_path_factory.mktemp("template"))


@given(st.lists(st.tuples(st.integers(0, 10**15), st.integers(0, 3)), min_size=1, max_size=30))
def test_statistics_of_groups(durations: list[tuple[int, int]]) -> None:
    found = grouped(*(np.array(column, dtype=np.int64) for column in zip(*durations, strict=True)))
    assert set(found) == {group for _, group in durations}
    for group, stats in found.items():
        own = [duration for duration, number in durations if number == group]
        assert (stats.count, stats.sum_ns, stats.min_ns, stats.max_ns) == (len(own), sum(own), min(own), max(own))
        assert stats.mean_ns == sum(own) / len(own)
        spread = float(np.std(np.array(own, dtype=np.longdouble), ddof=1)) if len(own) > 1 else 0.0
        assert stats.std_ns == pytest.approx(spread, rel=1e-9, abs=1e-3)


@st.composite
def nested(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """(start, end, depth) of intervals that nest, in the order of a thread's table."""
    rows: list[tuple[int, int, int]] = []

    def fill(low: int, high: int, depth: int) -> None:
        at = low
        while at < high and len(rows) < 25 and draw(st.booleans()):
            start = draw(st.integers(at, high))
            end = draw(st.integers(start, high))
            rows.append((start, end, depth))
            if depth < 4:
                fill(start, end, depth + 1)
            at = end

    fill(0, 40, 0)
    return rows


@given(nested())
def test_the_innermost_operator(rows: list[tuple[int, int, int]]) -> None:
    # Where zero-length rows share a moment with others, order says nothing about nesting; leave those to the fields.
    rows = sorted({(s, e): d for s, e, d in rows if e > s}.items(), key=lambda row: (row[0][0], -row[0][1]))
    spans = [span for span, _ in rows]
    start, end = (np.array([span[side] for span in spans], dtype=np.int64) for side in (0, 1))
    within = [sum(a <= s and e <= b for a, b in spans) - 1 for s, e in spans]
    at = np.arange(45, dtype=np.int64)
    for ns, found in zip(at.tolist(), innermost(start, end, at).tolist(), strict=True):
        holding = [row for row, (s, e) in enumerate(spans) if s <= ns < e]
        assert found == (max(holding, key=lambda row: within[row]) if holding else -1)


def test_operators_of_no_length_are_leaves() -> None:
    start, end = np.array([0, 0, 5, 5, 9]), np.array([10, 5, 10, 5, 9])
    assert innermost(start, end, np.array([0, 5, 7, 10])).tolist() == [1, 2, 2, -1]
