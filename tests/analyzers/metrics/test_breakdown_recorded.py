"""Kernel sequences, annotations, full queues and totals on reference traces.

The figures were recorded from HolisticTraceAnalysis 0.5.0 with pandas 2.2.3 on traces of whole microseconds; they are
in microseconds, as it prints them.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from brute_force import in_ns, written_events
from recordings import MADE, real
from reference_data import TRACES

from tightship_analyzers import trace as traces
from tightship_analyzers.metrics.queue_length import queue_length
from tightship_analyzers.metrics.sequences import kernel_sequences
from tightship_analyzers.metrics.step_filter import without_last_step
from tightship_analyzers.metrics.trace_diff import MODULE, Change, Part, Total, TraceTotals, trace_diff
from tightship_analyzers.metrics.user_annotations import annotation_times
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.not_applicable import NotApplicable

V100 = "hta/df_index_resolver/df_index_resolver.json.gz"
CONTROL = "hta/trace_diff/control/control.json.gz"
TEST = "hta/trace_diff/test/test.json.gz"
QWEN = "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"


QUEUED = {"cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync"}


@lru_cache(maxsize=3)
def kept(name: str) -> Trace:
    return without_last_step(traces.open(TRACES / name))


@pytest.mark.reference
@pytest.mark.parametrize(
    ("name", "operator", "patterns", "first"),
    [
        (V100, "aten::add", 5, [(172, 31264, 18854), (72, 8967, 6928), (32, 2669, 3192)]),
        (V100, "Backward", 1, [(4, 546973, 929198)]),
        (CONTROL, "aten::linear", 1, [(10, 986, 1123)]),
        (CONTROL, "Backward", 46, [(125, 4214, 9637)]),
        (TEST, "aten::linear", 2, [(70, 2913, 6084), (10, 2850, 1311)]),
        (TEST, "Backward", 9, [(75, 3952, 8888), (65, 4892, 13085), (60, 2889, 9793)]),
    ],
)
def test_kernel_sequences(name: str, operator: str, patterns: int, first: list[tuple[int, int, int]]) -> None:
    rows = kernel_sequences(kept(name), operator=operator)
    assert not isinstance(rows, NotApplicable) and len(rows) == patterns
    assert [(row.count, row.device_ns // 1000, row.host_ns // 1000) for row in rows[: len(first)]] == first


@pytest.mark.reference
def test_operators_count_wherever_they_are_called_from() -> None:
    """The peer looks only at the level of the shallowest match of the whole trace, and finds nothing here."""
    rows = kernel_sequences(kept(TEST), operator="aten::add")
    assert not isinstance(rows, NotApplicable)
    assert [(row.operator, row.count) for row in rows] == [("aten::addmm", 70), ("aten::addmm", 10)]


ANNOTATIONS = {
    V100: {
        "Optimizer.step#SGD.step": (50469, 13341, 11774, 645.825763),
        "Optimizer.zero_grad#SGD.zero_grad": (47288, 13690, 11091, 1248.570116),
        "ProfilerStep#2": (345770, 345770, 345770, 0.0),
        "ProfilerStep#5": (344269, 344269, 344269, 0.0),
        "nccl:all_reduce": (97302, 100, 51, 6.279537),
    },
    TEST: {
        "## all2all_data:indices_weights ##": (210, 36, 17, 5.597619),
        "## all2all_data:lengths ##": (1246, 181, 84, 38.615483),
        "## all2all_tw_data:init ##": (131641, 43791, 1534, 16856.567940),
        "## alltoall_bwd_single ##": (766, 188, 124, 24.427444),
    },
}


@pytest.mark.reference
@pytest.mark.parametrize("name", ANNOTATIONS)
def test_annotations(name: str) -> None:
    rows = annotation_times(kept(name))
    assert not isinstance(rows, NotApplicable)
    found = {row.name: row.host for row in rows}
    for annotation, (total, most, least, deviation) in ANNOTATIONS[name].items():
        own = found[annotation]
        assert (own.sum_ns, own.max_ns, own.min_ns) == (1000 * total, 1000 * most, 1000 * least)
        assert own.std_ns / 1000 == pytest.approx(deviation, abs=1e-6)


@pytest.mark.reference
@pytest.mark.parametrize(
    ("name", "streams", "last", "full"),
    [(V100, [7, 14], 14, 115), (CONTROL, [7, 22], 22, 31850), (TEST, [7, 16], 16, 45266)],
)
def test_time_at_a_full_queue(name: str, streams: list[int], last: int, full: int) -> None:
    """The peer overwrites a rank's streams by the last one that was ever full; the main stream is not known."""
    queues = queue_length(kept(name), calls=QUEUED)
    assert not isinstance(queues, NotApplicable)
    found = {queue.stream: queue.full_ns(20) for queue in queues}
    assert [stream for stream, ns in found.items() if ns] == streams
    assert found[last] == 1000 * full < found[7]


TODAY = [name for name in MADE if name not in ("oldest words", "MTIA")]
"""Those under the categories that `_part` knows."""


@pytest.mark.parametrize("recording", [*TODAY, *(real(TRACES / name) for name in (CONTROL, QWEN))], indirect=True)
def test_totals_are_those_of_the_file(recording: Path) -> None:
    expected: defaultdict[tuple[Part, str], list[int]] = defaultdict(lambda: [0, 0])
    for event in written_events(recording):
        part = _part(event)
        if part is not None:
            own = expected[part, event["name"].removeprefix(MODULE)]
            own[0] += 1
            own[1] += in_ns(event["dur"])
    found = TraceTotals([traces.open(recording)]).totals
    assert {
        key: [total.count, total.device_ns if key[0] is Part.KERNEL else total.host_ns] for key, total in found.items()
    } == expected


@pytest.mark.reference
def test_the_diff_of_two_runs_of_one_model_on_two_devices() -> None:
    before, after = TraceTotals([kept(CONTROL)]), TraceTotals([kept(TEST)])
    diff = trace_diff(before, after)
    assert not isinstance(diff, NotApplicable)
    assert (diff.before_units, diff.after_units) == (5, 5)
    rows = {row.name: row for row in diff.of(Part.KERNEL)}
    assert rows["Memcpy DtoD (Device -> Device)"].before.count == 15
    assert rows["Memcpy DtoD (Device -> Device)"].after.count == 3840
    assert rows["Memcpy DtoD (Device -> Device)"].change is Change.GREW
    assert all(row.before == Total() for row in diff.changed(Change.APPEARED))
    assert any("volta_sgemm" in row.name for row in diff.changed(Change.APPEARED))
    assert any("cutlass" in row.name for row in diff.changed(Change.VANISHED))
    ns = sum(row.after.device_ns - row.before.device_ns for row in diff.of(Part.KERNEL))
    assert ns == sum(sign * int(kept(name).device_events.dur_ns.sum()) for sign, name in ((1, TEST), (-1, CONTROL)))


def _part(event: dict[str, Any]) -> Part | None:
    if event.get("ph") != "X":
        return None
    if event.get("cat") == "cpu_op":
        return Part.OPERATOR
    if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
        return Part.KERNEL
    return Part.MODULE if event["name"].startswith(MODULE) else None
