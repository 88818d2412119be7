"""`tightship diff`: tables, JSON, groups of ranks, and one line when there is nothing to compare."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from device_trace import DeviceTrace

from tightship_analyzers.commands.diff import diff
from tightship_platform.text import label

GEMM = "void cutlass::gemm<float, 128ul>(float const*, float*)"


def write(folder: Path, *, slow_ns: int = 0, rank: int = 0, extra: str = "") -> Path:
    made = DeviceTrace()
    for number in range(3):
        at = 100_000 * number
        made.step(number, at, at + 100_000)
        made.host("aten::linear", at + 100, at + 500)
        made.pair((at + 200, at + 300), (at + 1_000, at + 3_000 + slow_ns), name=GEMM)
        if extra:
            made.pair((at + 400, at + 450), (at + 9_000, at + 9_400), name=extra)
    folder.mkdir(exist_ok=True)
    made.read(folder)
    return (folder / "made.json").rename(folder / f"rank{rank}.json")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(diff, [str(argument) for argument in arguments])


def ask(*arguments: str | Path) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_json_keys_are_stable(tmp_path: Path) -> None:
    before, after = write(tmp_path / "a"), write(tmp_path / "b", slow_ns=1_000, extra="triton_fused")
    said = ask(before, after)
    assert list(said) == ["before", "after", "unit", "absent", "rows"]
    assert said["before"] == {
        "path": str(before),
        "traces": [str(before)],
        "steps": 2,
        "devices": said["before"]["devices"],
        "step_ns": 100_000,
        "judged_steps": 2,
        "parts_ns": said["before"]["parts_ns"],
        "skipped": [],
        "warnings": [],
    }
    assert sum(said["before"]["parts_ns"].values()) == 200_000 and said["before"]["parts_ns"]["productive"] == 4_000
    assert said["absent"] == ["module"]
    rows = {row["name"]: row for row in said["rows"]}
    assert rows[GEMM] == {
        "part": "kernel",
        "name": GEMM,
        "change": "grew",
        "before": {"count": 2, "host_ns": 0, "device_ns": 4_000},
        "after": {"count": 2, "host_ns": 0, "device_ns": 6_000},
        "before_ns_per_unit": 2_000.0,
        "after_ns_per_unit": 3_000.0,
        "growth_ns_per_unit": 1_000.0,
        "within": None,
    }
    assert (rows["triton_fused"]["change"], rows["aten::linear"]["change"]) == ("appeared", "same")
    assert ask(before, after, "--all-steps")["after"]["steps"] == 3


def test_a_recording_without_steps_is_no_step(tmp_path: Path) -> None:
    with_steps, made = write(tmp_path / "a"), DeviceTrace()
    for at in range(0, 40_000, 10_000):
        made.pair((at, at + 100), (at + 1_000, at + 3_000), name=GEMM)
    made.read(tmp_path)
    without = tmp_path / "made.json"
    said = ask(with_steps, without)
    assert (said["unit"], said["before"]["steps"], said["after"]["steps"]) == ("ns/recording", 2, None)
    gemm = next(row for row in said["rows"] if row["name"] == GEMM)
    assert (gemm["before_ns_per_unit"], gemm["after_ns_per_unit"]) == (4_000.0, 8_000.0)
    shown = run(with_steps, without).output
    assert f"{without} holds no steps: whole recordings are compared, however long they are." in shown
    assert "device time per recording" in shown and "per step" not in shown and "1 trace, no steps" in shown
    assert ask(with_steps, with_steps)["unit"] == "ns/step"


def test_folders_are_the_ranks_of_one_run(tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path / "a", rank=rank)
    after = write(tmp_path / "b", slow_ns=1_000)
    (tmp_path / "a" / "notes.json").write_text('{"no": "trace"}')
    said = ask(tmp_path / "a", after)
    assert (said["before"]["steps"], said["after"]["steps"], len(said["before"]["traces"])) == (4, 2, 2)
    assert len(said["before"]["skipped"]) == 1 and "notes.json" in said["before"]["skipped"][0]
    assert {row["name"]: row["growth_ns_per_unit"] for row in said["rows"]}[GEMM] == 1_000.0


def test_what_the_terminal_shows(tmp_path: Path) -> None:
    before, after = write(tmp_path / "a"), write(tmp_path / "b", slow_ns=1_000, extra="triton_fused")
    result = run(before, after)
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert "grew 2.00 µs 3.00 µs +1.00 µs 1 → 1 cutlass::gemm<float, 128ul>" in lines
    assert "appeared – 400 ns +400 ns 0 → 1 triton_fused" in lines
    assert "Nothing changed." in lines
    assert "all together +1.40 µs per step." in lines
    assert any(line.startswith("Modules were not compared") for line in lines)
    few = run(before, after, "--limit", 1).output
    assert "1 smaller change not shown (--limit)" in few and "triton_fused" not in few
    same = run(before, before).output
    assert same.count("Nothing changed.") == 2


def test_the_first_line_says_how_the_step_changed_and_where(tmp_path: Path) -> None:
    def write_steps(folder: Path, *, step_ns: int, kernel_ns: int, device: str) -> Path:
        made = DeviceTrace()
        for number in range(3):
            at = step_ns * number
            made.step(number, at, at + step_ns)
            made.pair((at + 200, at + 300), (at + 1_000, at + 1_000 + kernel_ns))
        content = {"deviceProperties": [{"id": 0, "name": device}], "traceEvents": made.events}
        folder.mkdir()
        (folder / "x.json").write_text(json.dumps(content))
        return folder / "x.json"

    before = write_steps(tmp_path / "a", step_ns=100_000, kernel_ns=60_000, device="NVIDIA A100")
    after = write_steps(tmp_path / "b", step_ns=150_000, kernel_ns=110_000, device="Tesla V100")
    said = run(before, after).output
    assert said.startswith("A step went from 100 µs to 150 µs, 50.0 % longer: productive +50.0 µs.\n")
    assert "1 trace, 2 steps in the whole recording (2 whole), NVIDIA A100" in said
    assert "The devices differ" in said and "NVIDIA A100" in said and "Tesla V100" in said
    same = run(before, before).output
    assert same.startswith("A step takes 100 µs, as before (100 µs).\n") and "devices differ" not in same


def test_a_cut_off_trace_counts_as_far_as_it_goes_and_says_so(tmp_path: Path) -> None:
    before, after = write(tmp_path / "a"), write(tmp_path / "b")
    after.write_bytes(after.read_bytes()[:-700])
    assert "warning: " in run(before, after).output and "cut off at byte" in run(before, after).output
    judged, cut = ask(before, after)["after"]["warnings"]
    assert "judged are the first" in judged and "cut off at byte" in cut


def test_names_cannot_steer_a_terminal(tmp_path: Path) -> None:
    before, after = write(tmp_path / "a"), write(tmp_path / "b", extra="evil\x1b[2J[bold]red[/bold]\nline")
    output = run(before, after).output
    assert "\x1b" not in output and "[bold]red[/bold] line" in output


@pytest.mark.parametrize(
    ("name", "room", "expected"),
    [
        (GEMM, 80, "cutlass::gemm<float, 128ul>"),
        (GEMM, 15, "cutlass… 128ul>"),
        ("Memcpy DtoD (Device -> Device)", 80, "Memcpy DtoD (Device -> Device)"),
        ("void at::(anonymous namespace)::norm<T>(int (*)(int), T)", 80, "at::(anonymous namespace)::norm<T>"),
        ("at::(anonymous namespace)", 80, "at::(anonymous namespace)"),
        ("odd)", 80, "odd)"),
        ("aten::add", 80, "aten::add"),
    ],
)
def test_labels(name: str, room: int, expected: str) -> None:
    found = label(name, room)
    assert found == expected and len(found) <= room


@pytest.mark.parametrize("what", ["missing.json", "empty", "no_trace.json", "no_events.json"])
def test_nothing_to_compare_is_one_line_and_exit_code_2(tmp_path: Path, what: str) -> None:
    good = write(tmp_path / "a")
    (tmp_path / "empty").mkdir()
    (tmp_path / "no_trace.json").write_text("hello")
    (tmp_path / "no_events.json").write_text('{"traceEvents": []}')
    # A trace without events is something to compare with, as long as the other side holds any.
    before = good if what != "no_events.json" else tmp_path / what
    done = subprocess.run(
        [sys.executable, "-m", "tightship_platform.cli", "diff", str(before), str(tmp_path / what)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr and len(done.stderr.strip().splitlines()) == 1


def reading(folder: Path, read_ns: int, *, alone: bool = False) -> Path:
    made = DeviceTrace()
    for number in range(3):
        at = 100_000 * number
        made.step(number, at, at + 100_000)
        made.pair((at + 200, at + 300), (at + 1_000, at + 3_000))
        made.host("aten::item", at + 10_000, at + 10_400 + read_ns)
        made.host("aten::_local_scalar_dense", at + 10_100, at + 10_300 + read_ns)
        if alone:
            made.host("aten::_local_scalar_dense", at + 60_000, at + 60_100)
    folder.mkdir()
    made.read(folder)
    return folder / "made.json"


def test_what_only_another_name_calls_is_reported_once(tmp_path: Path) -> None:
    before, after = reading(tmp_path / "a", 1_000), reading(tmp_path / "b", 9_000)
    shown = run(before, after).output
    assert "aten::item" in shown and "_local_scalar_dense" not in shown
    assert "1 name left out that only another of them calls" in shown
    within = {row["name"]: row["within"] for row in ask(before, after)["rows"]}
    assert within["aten::_local_scalar_dense"] == "aten::item" and within["aten::item"] is None
    also_alone = reading(tmp_path / "c", 9_000, alone=True)
    assert "aten::_local_scalar_dense" in run(before, also_alone).output, "there it has its own calls"
