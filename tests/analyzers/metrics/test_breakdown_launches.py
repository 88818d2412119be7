"""Queues, launch statistics and copies on small traces made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from device_trace import DeviceTrace, moment

from tightship_analyzers.metrics.copies import Copies, copies, copy_type
from tightship_analyzers.metrics.launches import LONG_CALL_NS, LONG_DELAY_NS, SHORT_NS, launch_pairs, launch_stats
from tightship_analyzers.metrics.queue_length import queue_length
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.not_applicable import NotApplicable


def test_the_queue_of_a_stream(tmp_path: Path) -> None:
    made = DeviceTrace()
    made.pair((0, 5), (10, 30))
    made.pair((6, 9), (30, 40))
    made.pair((12, 15), (40, 50))
    made.pair((60, 61), (70, 80))
    made.pair((0, 5), (20, 25), stream=9)
    made.on_device(90, 95, link=99)
    queues = queue_length(made.read(tmp_path))
    assert not isinstance(queues, NotApplicable)
    first, second = queues
    assert (first.stream, first.unlinked, second.stream, second.unlinked) == (7, 1, 9, 0)
    assert (first.time_ns - moment(0)).tolist() == [0, 6, 10, 12, 30, 40, 60, 70]
    assert first.length.tolist() == [1, 2, 1, 2, 1, 0, 1, 0]
    summary = first.summary
    assert (summary.changes, summary.mean, summary.min, summary.max) == (8, 1.0, 0, 2)
    assert (summary.p25, summary.p50, summary.p75) == (0.75, 1.0, 1.25)
    assert first.area_ns == 6 + 2 * 4 + 2 + 2 * 18 + 10 + 10
    assert (first.full_ns(1), first.full_ns(2), first.full_ns()) == (50, 22, 0)
    assert second.length.tolist() == [1, 0]


def test_a_full_queue_is_reported_for_every_stream(tmp_path: Path) -> None:
    """The peer keeps one stream per rank: the last one overwrites the others."""
    made = DeviceTrace()
    for stream in (7, 9):
        made.pair((0, 5), (10 * stream, 200), stream=stream)
    queues = queue_length(made.read(tmp_path))
    assert not isinstance(queues, NotApplicable)
    assert {queue.stream: queue.full_ns(1) for queue in queues} == {7: 70, 9: 90}


def test_a_graph_is_one_operation_in_the_queue(tmp_path: Path) -> None:
    made = DeviceTrace()
    link = made.call(0, 8, name="cudaGraphLaunch")
    for start in (20, 30, 40):
        made.on_device(start, start + 5, link=link)
    trace = made.read(tmp_path)
    queues = queue_length(trace)
    assert not isinstance(queues, NotApplicable)
    assert queues[0].length.tolist() == [1, 0]
    stats = launch_stats(trace)
    assert not isinstance(stats, NotApplicable)
    assert (stats.host.count, stats.host.sum_ns, stats.device.count) == (1, 8, 3)
    assert (stats.delay.count, stats.delay.sum_ns) == (1, 12), "until its first kernel"


def test_a_queue_is_never_negative(tmp_path: Path) -> None:
    made = DeviceTrace()
    made.pair((10, 12), (10, 20))  # both clocks show the same moment
    made.pair((30, 31), (25, 40))  # the device's clock runs behind
    queues = queue_length(made.read(tmp_path))
    assert not isinstance(queues, NotApplicable)
    assert queues[0].length.tolist() == [1, 0, 1, 0]


def test_launch_statistics(tmp_path: Path) -> None:
    made = DeviceTrace()
    made.pair((0, 100), (150, 150 + SHORT_NS))
    made.pair((200, 300), (290, 330))  # began before the call returned: no delay
    made.pair((1_000, 1_000 + LONG_CALL_NS + 1), (60_000, 60_000 + SHORT_NS + 1), name="big")
    made.pair((100_000, 100_010), (100_010 + LONG_DELAY_NS + 1, 300_000), name="late")
    driver = made.call(100_020, 100_040, name="cuLaunchKernel")
    made.on_device(400_000, 400_500, link=driver, name="triton_")
    made.on_device(500_000, 500_100, link=999)
    trace = made.read(tmp_path)
    stats = launch_stats(trace)
    assert not isinstance(stats, NotApplicable)
    assert (stats.host.count, stats.unlinked) == (5, 1)
    assert stats.host.sum_ns == 100 + 100 + LONG_CALL_NS + 1 + 10 + 20
    assert (stats.delay.min_ns, stats.delay.sum_ns) == (0, 50 + 0 + 8_999 + LONG_DELAY_NS + 1 + 299_960)
    assert (stats.short_events, stats.shorter_than_call) == (3, 1)
    assert (stats.long_calls, stats.long_delays) == (1, 2)
    assert [(row.call, row.host.count, row.device.sum_ns) for row in stats.by_call[1:]] == [("cuLaunchKernel", 1, 500)]
    # The peer counts launches through the driver (Triton, CUDA graphs) not at all.
    without = launch_stats(trace, calls={"cudaLaunchKernel"})
    assert not isinstance(without, NotApplicable) and without.host.count == 4
    pairs = launch_pairs(trace)
    assert not isinstance(pairs, NotApplicable)
    assert pairs.delay_ns.tolist() == [50, 0, 8_999, LONG_DELAY_NS + 1, 299_960]
    assert (trace.device_events.launch[pairs.event] == pairs.launch).all()


@pytest.mark.parametrize("analysis", [queue_length, launch_stats, launch_pairs], ids=lambda a: a.__name__)
def test_without_launches_nothing_is_said(tmp_path: Path, analysis: Any) -> None:
    made = DeviceTrace()
    made.on_device(0, 10, link=5)
    answer = analysis(made.read(tmp_path))
    assert isinstance(answer, NotApplicable) and answer.reason.startswith("needs the runtime calls")


def copies_of(trace: Trace) -> dict[str, Copies]:
    rows = copies(trace)
    assert not isinstance(rows, NotApplicable)
    return {row.type: row for row in rows}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD"),
        ("Memcpy PtoP (Device -> Device)", "Memcpy PtoP"),
        ("hipMemcpyDtoH", "Memcpy DtoH"),
        ("Memset (Device)", "Memset"),
        ("Memset (Unknown)", "Memset"),
        ("dma_memcpyHtoD", "Memcpy HtoD"),
        ("dma_request", "Memcpy"),
    ],
)
def test_types_of_copies(name: str, expected: str) -> None:
    assert copy_type(name) == expected


def test_copies_by_type_and_their_bandwidth(tmp_path: Path) -> None:
    made = DeviceTrace()
    made.copy(0, 100, bytes=1000, name="Memcpy HtoD (Pageable -> Device)")
    made.copy(100, 300, bytes=1000)
    made.copy(250, 350, bytes=500, stream=9)
    made.copy(400, 500)
    made.copy(0, 50, name="Memcpy DtoH (Device -> Pinned)", stream=9, bytes=400)
    made.on_device(0, 10)
    rows = copies_of(made.read(tmp_path))
    assert list(rows) == ["Memcpy HtoD", "Memcpy DtoH"]
    to_device = rows["Memcpy HtoD"]
    assert (to_device.duration.count, to_device.duration.sum_ns, to_device.busy_ns) == (4, 500, 450)
    assert (to_device.bytes, to_device.transfer_ns, to_device.gbps) == (2500, 400, 6.25)
    assert (to_device.unsized, to_device.pageable) == (1, 1)
    assert (to_device.series.time_ns - moment(0)).tolist() == [0, 100, 100, 250, 300, 350]
    # A copy that begins when another ends does not run with it.
    assert to_device.series.gbps.tolist() == pytest.approx([10.0, 0.0, 5.0, 10.0, 5.0, 0.0])
    assert to_device.series.running.tolist() == [1, 0, 1, 2, 1, 0]
    summary = to_device.summary
    assert summary is not None
    assert (summary.changes, summary.min, summary.max, summary.mean) == (4, 5.0, 10.0, 7.5)


def test_what_rounding_leaves_is_no_bandwidth(tmp_path: Path) -> None:
    """The peer counts the rest of floating-point sums as points of a tiny bandwidth."""
    made = DeviceTrace()
    for number in range(50):
        made.copy(100 * number, 100 * number + 30, bytes=7 * number + 1)
    row = copies_of(made.read(tmp_path))["Memcpy HtoD"]
    assert row.summary is not None and row.summary.changes == 50
    assert row.series.gbps.tolist()[1::2] == [0.0] * 50


def test_recorded_bandwidths_give_the_nanoseconds_back(tmp_path: Path) -> None:
    made = DeviceTrace()
    made.copy(1_000, 3_000, bytes=8192, **{"memory bandwidth (GB/s)": 8192 / 2_560})
    made.copy(5_000, 5_000, bytes=64, **{"memory bandwidth (GB/s)": 64 / 704})
    row = copies_of(made.read(tmp_path))["Memcpy HtoD"]
    assert (row.duration.sum_ns, row.transfer_ns) == (2_000, 2_560 + 704)
    # A microsecond clock shows the second one as nothing; it took up to one tick.
    assert (row.series.time_ns - moment(0)).tolist() == [1_000, 3_000, 5_000, 6_000]
    assert row.series.gbps.tolist() == [8192 / 2_560, 0.0, 64 / 704, 0.0]


def test_a_bandwidth_that_contradicts_the_clock_is_not_believed(tmp_path: Path) -> None:
    made = DeviceTrace()
    made.copy(1_000, 3_000, bytes=8192, **{"memory bandwidth (GB/s)": 1e6})
    row = copies_of(made.read(tmp_path))["Memcpy HtoD"]
    assert (row.transfer_ns, row.gbps) == (2_000, 4.096)


def test_without_copies_nothing_is_said(tmp_path: Path) -> None:
    made = DeviceTrace()
    made.on_device(0, 10)
    answer = copies(made.read(tmp_path))
    assert isinstance(answer, NotApplicable) and answer.reason.startswith("needs copies")


def test_without_sizes_there_is_no_bandwidth(tmp_path: Path) -> None:
    made = DeviceTrace()
    made.copy(0, 10)
    row = copies_of(made.read(tmp_path))["Memcpy HtoD"]
    assert (row.gbps, row.summary, row.unsized, row.busy_ns, len(row.series.time_ns)) == (None, None, 1, 10, 0)
