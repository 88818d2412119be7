"""What a summary says of a recording whose figures mean something else than they seem to."""

from __future__ import annotations

from pathlib import Path

import pytest
from device_trace import DeviceTrace

from tightship_analyzers.analysis.judge import judge_trace


def stepping(steps: int) -> tuple[DeviceTrace, range]:
    """Steps of 100 µs with one operator, and when they begin."""
    made, begins = DeviceTrace(), range(0, steps * 100_000, 100_000)
    for number, at in enumerate(begins):
        made.step(number, at, at + 100_000)
        made.host("aten::mm", at + 100, at + 500)
    return made, begins


def remarks(made: DeviceTrace, folder: Path) -> list[str]:
    warnings: list[str] = judge_trace(made.read(folder)).summary.warnings
    return warnings


@pytest.mark.parametrize(("late_ns", "said"), [(0, 0), (100_000, 1)])
def test_a_device_that_does_the_work_of_earlier_steps(tmp_path: Path, late_ns: int, said: int) -> None:
    made, begins = stepping(6)
    for at in begins:
        made.pair((at + 200, at + 300), (at + 1_000 + late_ns, at + 90_000 + late_ns), name="gemm")
    found = [line for line in remarks(made, tmp_path) if "counted on the device" in line]
    assert len(found) == said
    assert all("up to 90.0 µs after the host" in line for line in found)


@pytest.mark.parametrize(("backend", "said"), [("nccl", 1), ("gloo", 0)])
def test_a_job_on_a_gpu_of_which_only_the_host_was_recorded(tmp_path: Path, backend: str, said: int) -> None:
    made, begins = stepping(3)
    for at in begins:
        made.host(f"{backend}:all_reduce", at + 600, at + 700)
    assert sum("used NCCL" in line for line in remarks(made, tmp_path)) == said
