"""The reference traces: exact figures from an independent program, and HolisticTraceAnalysis' own where it is right.

Where it is wrong, a test shows its figure, ours, and why.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from typing import TypeVar

import numpy as np
import pytest
from reference_data import TRACES, exact_figures, peer_figures

from tightship_analyzers import trace as traces
from tightship_analyzers.metrics.copies import Copies, copies
from tightship_analyzers.metrics.idle import idle_by_stream
from tightship_analyzers.metrics.kernel_classes import Evidence, KernelClass, Scheme, kernel_classes
from tightship_analyzers.metrics.kernels import kernel_names, kernel_types
from tightship_analyzers.metrics.launches import launch_stats
from tightship_analyzers.metrics.overlap import overlap
from tightship_analyzers.metrics.queue_length import queue_length
from tightship_analyzers.metrics.step_filter import without_last_step
from tightship_analyzers.metrics.temporal import temporal_breakdown
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Table, Trace
from tightship_platform.results.not_applicable import NotApplicable

EXACT, PEER = exact_figures(), peer_figures()

pytestmark = pytest.mark.reference

V100_NS = "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"
QWEN = "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
B200 = "tracelens/b200/eager_trace.json.gz"
A100 = "hta/negative_queue_length_values_check/rank0.json.gz"
DIFF_TEST = "hta/trace_diff/test/test.json.gz"
RESNET = "param/resnet_kineto.json.gz"

WHOLE_MICROSECONDS = (
    "hta_a100_rank0of16",
    "hta_a100_rank3of8_trace_diff_control",
    "hta_sampled_2of128rank",
    "hta_v100_2gpu_rank1_df_index_resolver",
    "hta_v100_trace_diff_test",
    "param_dlrm_8rank_v100",
    "param_resnet",
)
FILES = [
    pytest.param(stem, rank, name, id=name)
    for stem in WHOLE_MICROSECONDS
    if stem in PEER
    for rank, name in PEER[stem]["files"].items()
]

LAUNCHES = {
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
    "runFunction - job_prep_and_submit_for_execution",
}
"""The only calls that the peer's launch statistics know."""
QUEUED = LAUNCHES | {
    "cuLaunchKernel",
    "hipLaunchKernel",
    "hipExtModuleLaunchKernel",
    "hipMemcpyAsync",
    "hipMemsetAsync",
    "hipMemcpyWithStream",
}
"""The only calls that its queues know."""
CLASS_OF = {
    "COMPUTATION": KernelClass.COMPUTE,
    "COMMUNICATION": KernelClass.COMMUNICATION,
    "MEMORY": KernelClass.MEMORY,
}
TOP = 10
"""Names that its kernel table spells out before it merges the rest."""


T = TypeVar("T")


@lru_cache(maxsize=4)
def kept(name: str) -> Trace:
    return without_last_step(traces.open(TRACES / name))


def given(answer: T | NotApplicable) -> T:
    assert not isinstance(answer, NotApplicable), answer
    return answer


@pytest.mark.parametrize("name", EXACT)
def test_our_recognition_differs_only_where_the_patterns_know_no_name(name: str) -> None:
    classes = kernel_classes(kept(name))
    assert classes.differing == (73 if name == B200 else 0)
    assert classes.inferred == 0
    reported = np.isin(classes.evidence, (Evidence.LINK, Evidence.ARGUMENTS))
    assert (reported == (classes.recognised == KernelClass.COMMUNICATION)).all()


def test_communication_that_is_not_named_nccl() -> None:
    """The peer calls multicast all-reduces of symmetric memory computation."""
    trace = kept(B200)
    theirs, ours = (given(overlap(trace, scheme=scheme)) for scheme in (Scheme.PATTERNS, Scheme.RECOGNISED))
    names = {row.name for row in given(kernel_names(trace)) if row.type is KernelClass.COMMUNICATION}
    assert any("multimem_all_reduce" in name for name in names) and len(names) == 2
    assert theirs.comm_ns == EXACT[B200]["overlap"]["comm_ns"] == 21_953
    events = trace.device_events
    named = trace.names.mask(events.name, lambda text: "multimem_all_reduce" in text or text.startswith("nccl"))
    assert ours.comm_ns == Intervals.of_table(events.take(named)).measure_ns > 90 * theirs.comm_ns
    breakdown = given(temporal_breakdown(trace))
    assert breakdown.compute_ns == EXACT[B200]["temporal"]["compute_ns"] - (ours.comm_ns - theirs.comm_ns)


# -- kernel tables -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stem", WHOLE_MICROSECONDS)
def test_kernel_types(stem: str) -> None:
    """Its table sums over the ranks; combinations that never ran it shows or leaves out."""
    peer = PEER[stem]
    ours: defaultdict[tuple[KernelClass, ...], int] = defaultdict(int)
    for name in peer["files"].values():
        for types, ns in given(kernel_types(kept(name), scheme=Scheme.PATTERNS)).running_ns.items():
            ours[types] += ns
    theirs = {
        tuple(sorted(CLASS_OF[word] for word in row["kernel_type"].split(" overlapping "))): 1000 * row["sum"]
        for row in peer["results"]["gpu_kernel_type_breakdown"]
    }
    assert {types: ns for types, ns in ours.items() if ns or types in theirs} == theirs


@pytest.mark.parametrize(("stem", "rank", "name"), FILES)
def test_kernel_names(stem: str, rank: str, name: str) -> None:
    rows = given(kernel_names(kept(name), scheme=Scheme.PATTERNS))
    table = [row for row in PEER[stem]["results"]["gpu_kernel_breakdown"] if row["rank"] == int(rank)]
    compared = 0
    for word, kind in CLASS_OF.items():
        ours = {row.name: row.duration for row in rows if row.type is kind}
        theirs = {row["name"]: row for row in table if row["kernel_type"] == word}
        merged = theirs.pop("others", None)
        assert (merged is None) == (len(ours) <= TOP)
        for kernel, cell in theirs.items():
            own = ours[kernel]
            assert own.sum_ns == 1000 * cell["sum (us)"]
            compared += 1
            if merged is None:
                assert (own.min_ns, own.max_ns) == (1000 * cell["min (us)"], 1000 * cell["max (us)"])
                assert own.mean_ns == pytest.approx(1000 * cell["mean (us)"], rel=1e-9)
                assert own.std_ns == pytest.approx(1000 * cell["stddev"], rel=1e-9, abs=1e-6)
        # With more names its other columns are statistics of the sums of the names, not of kernels.
        rest = np.array([own.sum_ns for kernel, own in ours.items() if kernel not in theirs], dtype=np.int64)
        if merged is not None:
            assert rest.sum() == 1000 * merged["sum (us)"]
            assert (rest.min(), rest.max()) == (1000 * merged["min (us)"], 1000 * merged["max (us)"])
            assert rest.std(ddof=1) == pytest.approx(1000 * merged["stddev"], rel=1e-9)
        else:
            assert not len(rest)
    assert compared >= len(table) - 1 > 0


# -- launches, queues, copies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stem", "rank", "name"), FILES)
def test_launch_statistics(stem: str, rank: str, name: str) -> None:
    stats, peer = given(launch_stats(kept(name), calls=LAUNCHES)), PEER[stem]["results"]["launch_stats"][rank]
    assert peer == {
        "n": stats.host.count,
        "short_gpu_kernels(dur<=10us)": stats.short_events,
        "launch_delay_sum": stats.delay.sum_ns / 1000,
        "cpu_dur_sum": stats.host.sum_ns / 1000,
        "gpu_dur_sum": stats.device.sum_ns / 1000,
    }


def test_launches_that_its_list_does_not_name_count_too() -> None:
    trace, peer = kept(DIFF_TEST), PEER["hta_v100_trace_diff_test"]
    stats = given(launch_stats(trace))
    assert peer["results"]["launch_stats"]["0"]["n"] == 8310
    assert (stats.host.count, stats.device.count, len(trace.device_events)) == (8320, 12515, 12515)
    graphs = {row.call: row for row in stats.by_call}["cudaGraphLaunch"]
    assert (graphs.host.count, graphs.delay.count, graphs.device.count) == (10, 10, 4205)
    calls = trace.launches.name == trace.names.id("cudaGraphLaunch")
    assert graphs.host.sum_ns == trace.launches.dur_ns[calls].sum(), "each call once"
    queued = sum(queue.summary.changes for queue in given(queue_length(trace)))
    assert queued == 2 * stats.host.count


@pytest.mark.parametrize(("stem", "rank", "name"), FILES)
def test_queue_length(stem: str, rank: str, name: str) -> None:
    """Equal, up to the order of what a clock of microseconds shows at one moment.

    The peer sorts by time with an unstable sort, so whether a launch or a start at the same moment counts first is
    left to chance, and only the mean and the deviation feel it. Ours counts launches first, the peer's mean must lie
    between ours and that of the opposite order; without such moments it is equal.
    """
    trace = kept(name)
    ours = {queue.stream: queue for queue in given(queue_length(trace, calls=QUEUED))}
    columns = ("count", "mean", "std", "min", "25%", "50%", "75%", "max")
    seen = set()
    for row in PEER[stem]["results"]["queue_length_summary"]:
        if row["('rank', '')"] != int(rank):
            continue
        count, mean, std, low, quarter, half, rest, high = (row[f"('queue_length', '{column}')"] for column in columns)
        stream = row["('stream', '')"]
        seen.add(stream)
        queue = ours[stream]
        summary = queue.summary
        assert (summary.changes, summary.min, summary.max) == (count, low, high)
        assert (summary.p25, summary.p50, summary.p75) == (quarter, half, rest)
        change = np.diff(queue.length, prepend=0)
        least = np.cumsum(change[np.lexsort((change, queue.time_ns))]).mean()
        assert least - 1e-9 <= mean <= summary.mean + 1e-9
        if least == summary.mean:
            assert (mean, std) == pytest.approx((summary.mean, summary.std), rel=1e-9)
    assert seen == set(ours)


TOUCHING = {(DIFF_TEST, "Memcpy DtoD"), (RESNET, "Memcpy DtoD"), (RESNET, "Memset")}
"""Copies of one type that never overlap, and of which some end at the microsecond in which the next begins."""


@pytest.mark.parametrize(("stem", "rank", "name"), FILES)
def test_copy_bandwidth(stem: str, rank: str, name: str) -> None:
    ours = {row.type: row for row in given(copies(kept(name)))}
    columns = ("count", "mean", "std", "min", "25%", "50%", "75%", "max")
    seen = set()
    for row in PEER[stem]["results"]["memory_bw_summary"]:
        if row["('rank', '')"] != int(rank):
            continue
        kind = row["('name', '')"]
        seen.add(kind)
        if (name, kind) in TOUCHING:
            continue
        summary = ours[kind].summary
        assert summary is not None
        expected = [row[f"('memory_bw_gbps', '{column}')"] or 0 for column in columns]
        found = [summary.changes, summary.mean, summary.std, summary.min, summary.p25, summary.p50, summary.p75]
        assert [*found, summary.max] == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert seen == set(ours)


@pytest.mark.parametrize(("name", "kind"), sorted(TOUCHING))
def test_copies_that_follow_one_another_do_not_run_together(name: str, kind: str) -> None:
    """The peer adds their bandwidths up, and counts what rounding leaves of their own sums as points."""
    (row,) = (row for row in given(copies(kept(name))) if row.type == kind)
    stem = next(stem for stem, peer in PEER.items() if name in peer["files"].values())
    (theirs,) = (cell for cell in PEER[stem]["results"]["memory_bw_summary"] if cell["('name', '')"] == kind)
    assert row.summary is not None
    assert row.summary.changes == row.duration.count and row.series.running.max() == 1
    assert theirs["('memory_bw_gbps', 'count')"] > row.duration.count
    assert fastest_copy(name, row) == pytest.approx(row.summary.max)
    if name == DIFF_TEST:
        assert theirs["('memory_bw_gbps', 'count')"] == 7674 > 2 * 3840 - 10
        assert theirs["('memory_bw_gbps', 'min')"] < 1e-9
        assert theirs["('memory_bw_gbps', 'max')"] > 1.7 * fastest_copy(name, row)


def fastest_copy(name: str, row: Copies) -> float:
    events = kept(name).device_events
    sized = events.take(np.flatnonzero((events.bytes > 0) & (events.transfer_ns > 0)))
    own = sized.take(kept(name).names.mask(sized.name, lambda text: text.startswith(row.type)))
    return float((own.bytes / own.transfer_ns).max())


# -- where the peer is wrong ---------------------------------------------------------------------------------------


def test_rounding_makes_no_duration_negative() -> None:
    """On this trace its temporal breakdown ends in an AssertionError."""
    assert PEER["tracelens_h100_qwen05b"]["errors"] == {"temporal_breakdown": "AssertionError()"}
    trace = kept(QWEN)
    tables: tuple[Table, ...] = (trace.host_ops, trace.annotations, trace.device_annotations, trace.frames)
    tables += (trace.launches, trace.device_events)
    assert all((table.dur_ns >= 0).all() for table in tables)
    starts, ends = (np.concatenate([getattr(table, side) for table in tables]) for side in ("start_ns", "end_ns"))
    rounded = (ends - trace.base_ns) // 1000 + (trace.base_ns - starts) // 1000
    assert (int((rounded < 0).sum()), len(rounded)) == (1975, 12079)
    breakdown = given(temporal_breakdown(trace))
    assert breakdown.idle_ns + breakdown.compute_ns + breakdown.non_compute_ns == breakdown.kernel_span_ns == 49_652_832


def test_rounding_makes_no_idle_time() -> None:
    (theirs,) = PEER["hta_v100_ns_resolution"]["results"]["temporal_breakdown"]
    ours = given(temporal_breakdown(kept(V100_NS)))
    assert ours.idle_ns == EXACT[V100_NS]["temporal"]["idle_ns"] == 6_452_701
    assert 1000 * theirs["idle_time(us)"] / ours.idle_ns == pytest.approx(1.57, abs=0.005)


def test_kernels_without_a_launch_are_counted_and_joined_to_nothing() -> None:
    trace = kept(QWEN)
    (stream,) = given(idle_by_stream(trace))
    assert (stream.events, stream.unlinked) == (1707, 509)
    assert stream.other_ns == EXACT[QWEN]["idle_by_stream"][0]["other_ns"] == 727_643
    assert sum(row.unlinked for row in given(kernel_names(trace))) == 509
    assert given(launch_stats(trace)).host.count == given(queue_length(trace))[0].summary.changes // 2 == 1198
    assert given(queue_length(trace))[0].unlinked == given(launch_stats(trace)).unlinked == 509


@pytest.mark.parametrize(("stem", "rank", "name"), FILES)
def test_idle_time_is_equal_where_it_sums_no_negative_gaps(stem: str, rank: str, name: str) -> None:
    """Idle cells of streams whose events never overlap are equal to the peer's; it lists rank 0 only."""
    trace = kept(name)
    cells = {
        (row["stream"], row["idle_category"]): 1000 * row["idle_time"]
        for row in PEER[stem]["results"]["idle_time_breakdown"]
        if row["rank"] == int(rank)
    }
    for row in given(idle_by_stream(trace)):
        own = trace.device_events.take(trace.device_events.stream == row.stream)
        overlapping = bool((own.start_ns[1:] < np.maximum.accumulate(own.end_ns)[:-1]).any())
        if overlapping or row.unlinked or (row.stream, "host_wait") not in cells:
            continue
        ours = {"host_wait": row.host_wait_ns, "kernel_wait": row.kernel_wait_ns, "other": row.other_ns}
        assert {kind: cells.get((row.stream, kind), 0) for kind in ours} == ours
