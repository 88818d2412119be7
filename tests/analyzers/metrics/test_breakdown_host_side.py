"""Annotations, kernel sequences, memory, steps and the diff of traces, on small traces made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_trace import DeviceTrace, moment

from tightship_analyzers.metrics.memory import memory_timeline
from tightship_analyzers.metrics.sequences import kernel_sequences
from tightship_analyzers.metrics.step_filter import last_step, without_last_step
from tightship_analyzers.metrics.steps import step_count, steps
from tightship_analyzers.metrics.trace_diff import Change, Part, Total, TraceDiff, TraceTotals, trace_diff
from tightship_analyzers.metrics.user_annotations import annotation_times
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.not_applicable import NotApplicable


def test_time_per_user_annotation(tmp_path: Path) -> None:
    made = DeviceTrace()
    made.host("forward", 0, 100, category="user_annotation")
    made.host("forward", 200, 260, category="user_annotation")
    made.host("loss", 50, 90, category="user_annotation")
    made.pair((10, 12), (20, 40))
    made.pair((60, 62), (80, 150))
    made.pair((210, 212), (300, 305))
    made.call(70, 72, thread=101)
    made.on_device(400, 500, link=made.call(80, 81, thread=101))
    made.add_ns("gpu_user_annotation", "forward", 20, 150, pid=0, tid=7)
    rows = annotation_times(made.read(tmp_path))
    assert not isinstance(rows, NotApplicable)
    assert [(row.name, row.host.count, row.host.sum_ns, row.host.max_ns) for row in rows] == [
        ("forward", 2, 160, 100),
        ("loss", 1, 40, 40),
    ]
    assert [(row.device.count, row.device.sum_ns, row.device_work_ns) for row in rows] == [(1, 130, 95), (0, 0, 70)]


def layers(tmp_path: Path) -> Trace:
    made = DeviceTrace()
    for number in range(3):
        at = 1000 * number
        made.host("aten::linear", at, at + 100)
        made.host("aten::addmm", at + 10, at + 90)
        for place, name in enumerate(("cast", "gemm", "bias" if number < 2 else "fused")):
            made.pair(
                (at + 20 + 10 * place, at + 25 + 10 * place), (at + 200 + 50 * place, at + 240 + 50 * place), name=name
            )
    made.host("aten::relu", 5000, 5010)
    made.pair((5001, 5002), (5020, 5030), name="relu")
    return made.read(tmp_path)


def test_frequent_kernel_sequences(tmp_path: Path) -> None:
    trace = layers(tmp_path)
    rows = kernel_sequences(trace, operator="aten::")
    assert not isinstance(rows, NotApplicable)
    assert [(row.operator, row.kernels, row.count) for row in rows] == [
        ("aten::linear", ("cast", "gemm", "bias"), 2),
        ("aten::linear", ("cast", "gemm", "fused"), 1),
    ]
    assert (rows[0].device_ns, rows[0].host_ns, rows[0].first_ns) == (240, 200, moment(0))
    assert kernel_sequences(trace) == rows
    inner = kernel_sequences(trace, operator="addmm")
    assert not isinstance(inner, NotApplicable) and [(row.operator, row.count) for row in inner] == [
        ("aten::addmm", 2), ("aten::addmm", 1)
    ]  # fmt: skip
    short = kernel_sequences(trace, operator="relu", min_length=1)
    assert not isinstance(short, NotApplicable) and short[0].kernels == ("relu",)
    assert kernel_sequences(trace, operator="relu") == ()
    missing = kernel_sequences(trace, operator="conv")
    assert isinstance(missing, NotApplicable) and "'conv'" in missing.reason


def test_memory_timeline(tmp_path: Path) -> None:
    made = DeviceTrace()
    made.memory(10, 100, allocated=1100, reserved=4096)
    made.memory(20, 300, allocated=1400, reserved=4096)
    made.memory(30, -100, allocated=1300, reserved=2048)
    made.memory(15, 50, device=-1)
    made.memory(25, -20, device=-1)
    made.host("aten::empty", 0, 40)
    rows = memory_timeline(made.read(tmp_path))
    assert not isinstance(rows, NotApplicable)
    on_host, on_device = rows
    assert (on_device.device, on_device.is_relative) == (0, False)
    assert on_device.allocated_bytes.tolist() == [1100, 1400, 1300]
    assert (on_device.peak_allocated_bytes, on_device.peak_ns) == (1400, moment(20))
    assert (on_device.peak_reserved_bytes, on_device.growth_bytes) == (4096, 200)
    assert (on_device.allocations, on_device.frees, on_device.churn_bytes) == (2, 1, 400)
    assert (on_host.device, on_host.is_relative, on_host.allocated_bytes.tolist()) == (-1, True, [50, 30])
    assert (on_host.reserved_bytes, on_host.peak_reserved_bytes) == (None, None)
    assert (on_device.capacity_bytes, on_device.peak_frac, on_host.peak_frac) == (None, None, None)


def test_memory_against_what_the_device_has(tmp_path: Path) -> None:
    made = DeviceTrace()
    made.memory(10, 100, allocated=1100, reserved=4096)
    devices = [{"id": 1, "totalGlobalMem": 7}, {"id": 0, "totalGlobalMem": 16384}]
    rows = memory_timeline(made.read(tmp_path, deviceProperties=devices))
    assert not isinstance(rows, NotApplicable)
    row = rows[0]
    assert (row.capacity_bytes, row.peak_frac) == (16384, 0.25)
    assert row.peak_reserved_bytes == 4096
    for strange in ("16384", -1, None, 2**60, True):
        devices = [{"id": 0, "totalGlobalMem": strange}, "x"]
        rows = memory_timeline(made.read(tmp_path, deviceProperties=devices))
        assert not isinstance(rows, NotApplicable) and rows[0].peak_frac is None


def test_steps(tmp_path: Path) -> None:
    made = DeviceTrace()
    made.step(9, 0, 100)
    made.step(10, 100, 250)
    made.pair((10, 11), (20, 60))
    made.pair((90, 91), (90, 130))
    made.pair((150, 151), (240, 300))
    trace = made.read(tmp_path)
    rows = steps(trace)
    assert not isinstance(rows, NotApplicable)
    assert [(row.name, row.duration_ns, row.device_busy_ns, row.launched, row.device_work_ns) for row in rows] == [
        ("ProfilerStep#9", 100, 50, 2, 80),
        ("ProfilerStep#10", 150, 40, 1, 60),
    ]
    assert step_count(trace) == 2
    given = steps(trace, bounds_ns=np.array([moment(0), moment(50), moment(95)], dtype=np.int64))
    assert not isinstance(given, NotApplicable)
    assert [(row.name, row.device_busy_ns, row.launched) for row in given] == [("step 1", 30, 1), ("step 2", 15, 1)]


def test_marks_that_count_from_0_again_are_steps_of_their_own(tmp_path: Path) -> None:
    made = DeviceTrace()
    for number in range(6):
        begin = number * 100
        made.step(number % 3, begin, begin + 90)
        made.host(f"ProfilerStep#{number % 3}", begin + 5, begin + 95, category="user_annotation", thread=7)
        made.pair((begin + 10, begin + 11), (begin + 20, begin + 60))
    trace = made.read(tmp_path)
    rows = steps(trace)
    assert not isinstance(rows, NotApplicable)
    assert [(row.name[-1], row.duration_ns, row.launched) for row in rows] == [(str(n % 3), 95, 1) for n in range(6)]
    assert step_count(trace) == 6
    assert last_step(trace) == ("ProfilerStep#2", moment(500))
    assert len(without_last_step(trace).device_events) == 5


def test_unmarked_steps_are_counted_by_the_optimizer(tmp_path: Path) -> None:
    made = DeviceTrace()
    for at in (100, 200, 300):
        made.host("Optimizer.step#SGD.step", at, at + 10, category="user_annotation")
    trace = made.read(tmp_path)
    assert step_count(trace) == 3
    assert isinstance(steps(trace), NotApplicable)


def model(tmp_path: Path, *, steps_of: int, fused: bool, slow_ns: int = 0) -> Trace:
    made = DeviceTrace()
    for number in range(steps_of):
        at = 10_000 * number
        made.step(number, at, at + 10_000)
        made.host(
            "nn.Module: Linear_0", at + 10, at + 510 + slow_ns, category="python_function", **{"Python id": number}
        )
        made.host("aten::linear", at + 20, at + 500 + slow_ns)
        made.pair((at + 30, at + 40), (at + 600, at + 1600 + slow_ns), name="gemm")
        made.host("aten::add", at + 2000, at + 2040)
        if fused:
            made.pair((at + 2010, at + 2015), (at + 3000, at + 3100), name="triton_fused")
        else:
            made.pair((at + 2010, at + 2015), (at + 3000, at + 3080), name="add")
            made.pair((at + 2020, at + 2025), (at + 3100, at + 3190), name="mul")
    folder = tmp_path / f"{steps_of}{fused}{slow_ns}"
    folder.mkdir()
    return made.read(folder)


def diff_of(before: list[Trace], after: list[Trace]) -> TraceDiff:
    found = trace_diff(TraceTotals(before), TraceTotals(after))
    assert not isinstance(found, NotApplicable)
    return found


def test_trace_diff_is_per_step(tmp_path: Path) -> None:
    before, after = model(tmp_path, steps_of=2, fused=False), model(tmp_path, steps_of=3, fused=True, slow_ns=400)
    found = diff_of([before], [after])
    assert (found.before_units, found.after_units, found.absent) == (2, 3, ())
    rows = {(row.part, row.name): row for row in found.rows}
    assert {key: row.change for key, row in rows.items()} == {
        (Part.KERNEL, "gemm"): Change.GREW,
        (Part.KERNEL, "triton_fused"): Change.APPEARED,
        (Part.KERNEL, "add"): Change.VANISHED,
        (Part.KERNEL, "mul"): Change.VANISHED,
        (Part.OPERATOR, "aten::linear"): Change.GREW,
        (Part.OPERATOR, "aten::add"): Change.SAME,
        (Part.MODULE, "Linear_0"): Change.GREW,
    }
    linear = rows[Part.MODULE, "Linear_0"]
    assert linear.before == Total(count=2, host_ns=1000, device_ns=2000)
    assert linear.after == Total(count=3, host_ns=2700, device_ns=4200)
    assert (linear.before_ns, linear.after_ns, linear.growth_ns, linear.growth_count) == (500.0, 900.0, 400.0, 0.0)
    assert rows[Part.KERNEL, "gemm"].growth_ns == 400.0
    assert [abs(row.growth_ns) for row in found.rows] == sorted(
        (abs(row.growth_ns) for row in found.rows), reverse=True
    )
    assert {row.name for row in found.changed(Change.VANISHED)} == {"add", "mul"}
    back = {(row.part, row.name): row.change for row in diff_of([after], [before]).rows}
    assert back[Part.KERNEL, "gemm"] is Change.SHRANK and back[Part.KERNEL, "mul"] is Change.APPEARED


def test_a_group_of_traces_against_itself_is_the_same(tmp_path: Path) -> None:
    one, other = model(tmp_path, steps_of=2, fused=False), model(tmp_path, steps_of=1, fused=False)
    found = diff_of([one, other], [one])
    assert (found.before_units, found.after_units) == (3, 2)
    assert {row.change for row in found.rows} == {Change.SAME}
    assert {row.growth_ns for row in found.rows} == {0.0}


def test_a_diff_says_what_neither_side_holds(tmp_path: Path) -> None:
    made = DeviceTrace()
    made.host("aten::add", 0, 10)
    trace = made.read(tmp_path)
    assert diff_of([trace], [trace]).absent == (Part.KERNEL, Part.MODULE)
    empty = DeviceTrace()
    empty.step(1, 0, 10)
    bare = empty.read(tmp_path)
    answer = trace_diff(TraceTotals([bare]), TraceTotals([bare]))
    assert isinstance(answer, NotApplicable) and answer.reason.startswith("needs operators")
    assert isinstance(trace_diff(TraceTotals([trace]), TraceTotals()), NotApplicable)


@pytest.mark.parametrize(
    ("analysis", "reason"),
    [
        (annotation_times, "needs user annotations"),
        (memory_timeline, "needs memory events"),
        (steps, "needs marked steps"),
        (kernel_sequences, "needs device events"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_missing_is_said(tmp_path: Path, analysis: Any, reason: str) -> None:
    made = DeviceTrace()
    made.host("aten::add", 0, 10)
    answer = analysis(made.read(tmp_path))
    assert isinstance(answer, NotApplicable) and answer.reason.startswith(reason)
