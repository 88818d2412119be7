"""The reference traces (V100, A100, H100, B200, MI250, MI300X, MTIA, CPU): every event, and exact figures.

And the same of made ones, where no reference data are at hand.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trace_files
from brute_force import BruteForce
from recordings import ANY, figures
from reference_data import TRACES, exact_figures

from tightship_analyzers import trace
from tightship_analyzers.trace.intervals import Intervals

TABLES = {
    "host_ops": ("cpu_op",),
    "annotations": ("user_annotation",),
    "device_annotations": ("gpu_user_annotation",),
    "frames": ("python_function",),
    "launches": ("cuda_runtime", "cuda_driver", "mtia_runtime"),
    "device_events": ("kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events"),
    "syncs": ("cuda_sync",),
    "overheads": ("overhead",),
}
COMMUNICATION = re.compile(r"(^nccl.*)|(^hip)|(^hccl)|(.*ncclKernel.*)")
MEMORY = re.compile(r"(^(hip)?Memcpy)|(^(hip)?Memset)|(^dma)")
OLDEST = {"Runtime": "cuda_runtime", "Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}
"""Categories of PyTorch 1.8, except for `Operator`, and their successors."""


def category(event: dict[str, Any]) -> str | None:
    """An event's category in today's words; of the old ones only torch's annotations have such names."""
    given: str | None = event.get("cat")
    if given == "Operator":
        return "user_annotation" if "#" in event["name"] or event["name"].startswith("nccl:") else "cpu_op"
    return OLDEST.get(given or "", given)


def loaded(path: Path) -> Any:
    content = path.read_bytes()
    text = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    return json.loads(text, parse_float=str)


@pytest.mark.parametrize("recording", ANY, indirect=True)
def test_every_event_is_there(recording: Path) -> None:
    whole = loaded(recording)
    events = whole["traceEvents"]
    counts = Counter((event.get("ph"), category(event)) for event in events)
    read = trace.open(recording)
    trace_files.assert_sound(read)
    assert read.warnings == []
    assert read.events == len(events)
    for table, categories in TABLES.items():
        assert len(getattr(read, table)) == sum(counts["X", category] for category in categories), table
    assert len(read.memory_events) == counts["i", "cpu_instant_event"]
    assert len(read.links) == min(counts["s", "fwdbwd"], counts["f", "fwdbwd"])
    assert read.rank == whole.get("distributedInfo", {}).get("rank")
    expected = Counter(event["name"] for event in events if category(event) in TABLES["device_events"])
    assert Counter(read.names[number] for number in read.device_events.name.tolist()) == expected
    ids = [event["args"].get("correlation", -1) for event in events if category(event) in TABLES["launches"]]
    assert sorted(read.launches.correlation.tolist()) == sorted(ids)


@pytest.mark.parametrize("recording", ANY, indirect=True)
def test_busy_and_idle_time_to_the_nanosecond(recording: Path) -> None:
    """Temporal breakdown and overlap by the definitions of HolisticTraceAnalysis, against an independent program."""
    expected, read = figures(recording), trace.open(recording)
    kept = np.ones(len(read.device_events), dtype=bool)
    steps = read.annotations_named("ProfilerStep#")
    if len(np.unique(steps.name)) >= 2:
        launched = read.launches.correlation[read.launches.start_ns < steps.start_ns.max()]
        kept = np.isin(read.device_events.correlation, launched[launched > 0])
    events = read.device_events.take(kept)
    communicates = read.names.mask(events.name, lambda text: COMMUNICATION.match(text) is not None)
    moves = read.names.mask(events.name, lambda text: MEMORY.match(text) is not None) & ~communicates
    busy = Intervals.of_table(events)
    compute = Intervals.of_table(events.take(~communicates & ~moves))
    communication = Intervals.of_table(events.take(communicates))
    span = int(events.end_ns.max() - events.start_ns.min()) if len(events) else 0
    assert (len(events), int((events.launch < 0).sum())) == (expected["device_events"], expected["unlinked"])
    assert expected["temporal"] == {
        "kernel_span_ns": span,
        "idle_ns": span - busy.measure_ns,
        "compute_ns": compute.measure_ns,
        "non_compute_ns": busy.measure_ns - compute.measure_ns,
    }
    assert expected["overlap"] == {
        "comm_ns": communication.measure_ns,
        "overlapped_ns": (communication & compute).measure_ns,
    }


@pytest.mark.reference
@pytest.mark.parametrize("name", exact_figures())
def test_the_brute_force_finds_the_published_figures(name: str) -> None:
    found = BruteForce(TRACES / name).figures()
    published = exact_figures()[name]
    found["idle_by_stream"].sort(key=lambda cell: cell["stream"])
    published["idle_by_stream"].sort(key=lambda cell: cell["stream"])
    assert found == published


@pytest.mark.reference
def test_launches_that_the_trace_lacks_are_not_made_up() -> None:
    """The peer joins 509 kernels of this trace to the first launch; they have none."""
    read = trace.open(TRACES / "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz")
    assert len(read.device_events) == 1707 and int((read.device_events.launch < 0).sum()) == 509
