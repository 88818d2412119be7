"""Files that end too early, and files in which the profiler recorded no device events."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import reference_data
import trace_files
from click.testing import CliRunner
from hazard_traces import HAZARDS
from trace_files import Written

from tightship_analyzers import trace
from tightship_analyzers.analysis.judge import judge_trace
from tightship_analyzers.commands.analyze import analyze
from tightship_analyzers.commands.diff import diff
from tightship_analyzers.trace.coverage import GIVES_WORK
from tightship_platform.vocabulary import Bucket

MAIN, BACKWARD = 100, 101
HOST = ("cpu_op", "user_annotation", "python_function", "cpu_instant_event", "fwdbwd")
STEPS, STEP_US, KERNEL_US = 6, 1000, 600
BASE_US = 4_313_986_415_000
Events = list[dict[str, Any]]


def event(cat: str, name: str, tid: int, ts: int, dur: int, **args: Any) -> dict[str, Any]:
    at = {"pid": 0 if cat == "kernel" else 7, "tid": tid, "ts": BASE_US + ts, "dur": dur}
    return {"ph": "X", "cat": cat, "name": name, **at, "args": args}


def host(tids: tuple[int, ...] = (MAIN, BACKWARD)) -> Events:
    """What Kineto writes first: the operators, thread after thread."""
    found = []
    for tid in tids:
        for at in range(0, STEPS * STEP_US, STEP_US):
            if tid == MAIN:
                found.append(event("user_annotation", "Optimizer.step#SGD.step", tid, at + 900, 100))
                found.append(event("cpu_op", "aten::mm", tid, at + 10, 100))
            else:
                name = "autograd::engine::evaluate_function: MmBackward0"
                found.append(event("cpu_op", name, tid, at + 500, 100))
    return found


def device(tid: int = MAIN, *, call: str = "cudaLaunchKernel", kernels: bool = True) -> Events:
    """What it writes then: calls and device events in order of time; step n's kernel runs for 60 % of the step."""
    found = []
    for number, at in enumerate(range(0, STEPS * STEP_US, STEP_US), start=1):
        start, dur = (at + 20, KERNEL_US) if tid == MAIN else (at + 510 + KERNEL_US // 4, 100)
        correlation = tid * 1000 + number
        found.append(event("cuda_runtime", call, tid, start, 5, correlation=correlation))
        if kernels:
            found.append(event("kernel", "mm", 7, start + 10, dur, correlation=correlation, device=0, stream=7))
    return found


def text(events: Events, **before: Any) -> bytes:
    header = before or {"deviceProperties": [{"id": 0, "name": "Tesla V100"}]}
    return trace_files.trace_text(events, before=header, after={})


def cut_after(whole: bytes, kernels: int) -> bytes:
    """The text up to and with that many kernels, and half of what follows them."""
    place = 0
    for _ in range(kernels):
        place = whole.index(b'"cat": "kernel"', place) + 1
    return whole[: whole.index(b"}", whole.index(b"}", place) + 1) + 20]


@pytest.mark.parametrize("kernels", range(2, STEPS))
def test_steps_count_up_to_the_last_device_event(written: Written, kernels: int) -> None:
    whole = text([*host((MAIN,)), *device()])
    read = trace.open(written(cut_after(whole, kernels)))
    last_us = (kernels - 1) * STEP_US + 30 + KERNEL_US
    assert read.cut_off and read.device_kind == "gpu" and len(read.device_events) == kernels
    assert read.covered_end_ns == (BASE_US + last_us) * 1000
    summary = judge_trace(read).summary
    # Steps reach from the end of one optimizer step to the next; the first whole one is the second of the file.
    assert summary.steps == max(0, kernels - 2)
    if summary.steps:
        # Whatever was cut away, none of it counts as idle time of the device.
        assert summary.buckets[Bucket.PRODUCTIVE.value] == summary.steps * KERNEL_US * 1000
    assert summary.covered_frac == pytest.approx((last_us - 10) / (STEPS * STEP_US - 10))
    assert "file is cut off" in summary.warnings[0] and "cut off at byte" in summary.warnings[1]


def test_a_whole_file_is_judged_to_its_end(written: Written) -> None:
    read = trace.open(written(text([*host((MAIN,)), *device()])))
    assert not read.cut_off and read.covered_end_ns is None and read.covered_frac == 1.0
    assert judge_trace(read).summary.steps == STEPS - 1 and read.warnings == []


def test_only_the_end_of_the_file_is_missing(written: Written) -> None:
    """Cut off behind the list of events, nothing that is judged is missing."""
    whole = trace_files.trace_text([*host((MAIN,)), *device()], after={"traceName": "x"})
    read = trace.open(written(whole[: whole.index(b'"traceName"') + 4]))
    assert not read.cut_off and read.covered_frac == 1.0 and "cut off at byte" in read.warnings[0]


def test_a_thread_whose_calls_come_later_is_missing(written: Written) -> None:
    whole = text([*host(), *device(), *device(BACKWARD)])
    read = trace.open(written(cut_after(whole, STEPS - 1)))
    assert read.covered_end_ns == (BASE_US + 500) * 1000, "the backward pass begins here"
    read = trace.open(written(cut_after(whole, STEPS + 3)))
    last_us = 2 * STEP_US + 510 + KERNEL_US // 4 + 10 + 100
    assert read.covered_end_ns == (BASE_US + last_us) * 1000, "of the thread that is written last"


@pytest.mark.parametrize(
    "before", [{"deviceProperties": [{"id": 0}]}, {"distributedInfo": {"backend": "cpu:gloo,cuda:nccl"}}]
)
def test_cut_off_before_the_device_is_not_a_job_on_the_cpu(written: Written, before: dict[str, Any]) -> None:
    whole = text([*host(), *device()], **before)
    read = trace.open(written(whole[: whole.index(b"cuda_runtime")]))
    assert read.device_kind == "gpu" and read.covered_frac == 0.0
    verdict = judge_trace(read)
    assert not verdict.findings and not verdict.summary.buckets and not verdict.summary.steps
    assert verdict.summary.warnings[0].startswith("nothing is judged: the file holds a header that names a device")
    assert not any("please report" in line for line in verdict.summary.warnings)


def test_calls_without_device_events(written: Written) -> None:
    """As where the profiler may not read the device: a whole file, but the device's side is missing."""
    read = trace.open(written(text([*host(), *device(kernels=False)])))
    assert not read.cut_off and read.device_kind == "gpu" and read.device_name == "Tesla V100"
    verdict = judge_trace(read)
    assert not verdict.findings and not verdict.summary.buckets
    assert verdict.summary.warnings[0] == (
        "nothing is judged: the file holds 6 calls that gave a device work, but no device events; "
        "its profiler recorded none"
    )


def test_a_job_on_the_cpu_of_a_machine_with_a_device(written: Written) -> None:
    read = trace.open(written(text([*host(), *device(call="cudaDeviceSynchronize", kernels=False)])))
    assert read.device_kind == "cpu" and read.device_name == "cpu" and read.covered_frac == 1.0
    summary = judge_trace(read).summary
    assert summary.steps == STEPS - 1 and summary.warnings == []


def test_a_cut_off_file_that_names_no_device(written: Written) -> None:
    whole = text(host(), schemaVersion=1)
    read = trace.open(written(whole[: len(whole) // 2]))
    assert read.device_kind == "cpu" and read.cut_off and read.covered_frac is None
    assert "whether the job used a device is not known" in judge_trace(read).summary.warnings[0]
    said = CliRunner().invoke(analyze, [str(written(whole[: len(whole) // 2]))]).stdout
    assert "\nHost busy " in said and "device unknown, rank 0: " in said
    assert "CPU busy" not in said and "CPU only" not in said


@pytest.mark.parametrize("kernels", [0, 4])
def test_the_report_says_it_above_the_verdict(written: Written, tmp_path: Path, kernels: int) -> None:
    whole = text([*host((MAIN,)), *device()])
    cut = cut_after(whole, kernels) if kernels else whole[: whole.index(b"cuda_runtime")]
    page = tmp_path / "page.html"
    done = CliRunner().invoke(analyze, [str(written(cut)), "--html", str(page)])
    assert done.exit_code == 0, done.output
    first = done.stdout.splitlines()[0]
    assert ("judged are the first 3.62 ms of 5.99 ms" if kernels else "nothing is judged") in first
    assert "CPU only" not in done.stdout and "prof.step()" not in done.stdout
    header, _, below = page.read_text().partition("<h1>")
    assert ("judged are the first" if kernels else "nothing is judged") in header
    assert "CPU only" not in below


def test_the_diff_says_it(written: Written, tmp_path: Path) -> None:
    whole = text([*host((MAIN,)), *device()])
    cut = tmp_path / "cut.json"
    cut.write_bytes(cut_after(whole, 4))
    done = CliRunner().invoke(diff, [str(written(whole)), str(cut)])
    assert done.exit_code == 0 and "cut.json: judged are the first 3.62 ms" in done.output, done.output


def test_calls_that_give_work() -> None:
    for name in (
        "cudaLaunchKernel",
        "cuLaunchKernelEx",
        "hipExtModuleLaunchKernel",
        "cudaMemcpyAsync",
        "cudaGraphLaunch",
    ):
        assert GIVES_WORK.search(name)
    for name in ("cudaDeviceSynchronize", "cudaLaunchHostFunc", "cudaHostAlloc", "cudaEventRecord", "hipGetDevice"):
        assert not GIVES_WORK.search(name)


@pytest.mark.reference
def test_a_part_of_a_recorded_job_is_never_one_of_the_cpu(written: Written) -> None:
    path = next((reference_data.TRACES / "param" / "dlrm_8rank").glob("worker0_*.gz"))
    whole = gzip.decompress(path.read_bytes())
    parts = {30_000: False, 300_000: False, len(whole) * 7 // 10: True, len(whole) - 20_000: True}
    assert_parts_are_judged_as_parts(whole, written, parts)


@pytest.mark.parametrize("hazard", ["since the epoch", "whole microseconds", "AMD", "MTIA", "symmetric memory"])
def test_a_part_of_a_made_job_is_never_one_of_the_cpu(written: Written, hazard: str) -> None:
    found = json.loads(HAZARDS[hazard](), parse_float=str)
    # Kineto writes the host first, then what its calls and the device did, in order of time.
    host = [event for event in found["traceEvents"] if event["cat"] in HOST]
    device = [event for event in found["traceEvents"] if event["cat"] not in HOST]
    order = [*host, *sorted(device, key=lambda event: float(event["ts"]))]
    before = {key: value for key, value in found.items() if key != "traceEvents"}
    whole = trace_files.trace_text(order, before=before, after={})
    begins = whole.index(json.dumps(device[0]["cat"]).encode())
    sizes = (begins // 2, begins - 100, (begins + 2 * len(whole)) // 3, len(whole) - 3_000)
    assert_parts_are_judged_as_parts(whole, written, dict(zip(sizes, (False, False, True, True), strict=True)))


def assert_parts_are_judged_as_parts(whole: bytes, written: Written, judged: dict[int, bool]) -> None:
    """:param judged: size of a part → whether it holds enough of the device to be judged."""
    for size, enough in judged.items():
        summary = judge_trace(trace.open(written(whole[:size]))).summary
        assert summary.device_kind == "gpu" and summary.covered_frac < 1.0
        assert summary.device.startswith("Tesla V100")
        assert bool(summary.buckets) == enough
        assert not any("please report" in line for line in summary.warnings)
