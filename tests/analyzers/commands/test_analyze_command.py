"""`tightship analyze`: the verdict in a terminal and as JSON, and one line when there is none."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from gpu_job import GpuJob
from rule_jobs import work

from tightship_analyzers.commands.analyze import analyze
from tightship_platform.errors import TightshipError

RECORDED = Path(__file__).parents[2] / "data" / "traces"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(analyze, [str(argument) for argument in arguments], catch_exceptions=True)


def ask(*arguments: str | Path) -> dict:  # type: ignore[type-arg]
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_json_keys_are_stable() -> None:
    said = ask(RECORDED / "starved.json.gz")
    assert list(said) == ["ranks", "across_ranks", "findings", "not_judged", "skipped", "failed"]
    [rank] = said["ranks"]
    assert list(rank) == [
        "rank",
        "source",
        "device",
        "device_kind",
        "events",
        "covered_frac",
        "recording",
        "saving_unit",
        "window_start_ns",
        "window_ns",
        "steps",
        "step_ns",
        "untraced_step_ns",
        "device_busy_ns",
        "buckets",
        "unclaimed_ns",
        "claims",
        "joint_saving_frac",
        "warnings",
        "recorded_ns",
        "saved_ns",
        "mfu_frac",
        "temporal",
        "overlap",
        "by_patterns",
        "communication_inferred",
        "idle_by_stream",
        "idle_causes",
        "window_idle_causes",
        "graph_idle_ns",
        "exposed_causes",
        "kernels",
        "memory",
        "queues",
        "launches",
        "copies",
        "annotations",
        "kernel_sequences",
        "simulation_error_frac",
        "simulation",
        "critical_path",
        "roofline",
        "fusion_candidates",
    ]
    assert [step["step"] for step in rank["steps"]] == list(range(len(rank["steps"])))
    assert sum(rank["buckets"].values()) == rank["window_ns"]
    idle_ns = sum(ns for step in rank["steps"] for ns in step["idle_causes"].values())
    assert idle_ns == rank["window_ns"] - rank["device_busy_ns"] == sum(row["ns"] for row in rank["idle_causes"])
    assert idle_ns == sum(row["ns"] for row in rank["window_idle_causes"])
    [finding] = said["findings"]
    assert list(finding) == [
        "rule",
        "title",
        "run",
        "workflow",
        "trace",
        "rank",
        "of_ranks",
        "where",
        "fix",
        "saving",
        "standing",
        "evidence",
    ]
    assert list(finding["saving"]) == ["value", "unit", "low", "high", "method", "share_frac"]
    assert (finding["rule"], finding["run"], finding["rank"]) == ("starved-input", None, 0)
    assert finding["trace"] == rank["source"]


def test_the_report_names_share_place_and_fix() -> None:
    result = run(RECORDED / "starved.json.gz")
    assert result.exit_code == 0
    saving = "estimate, upper bound 13.1 ms a step"
    for words in ("input", "productive", "starved-input", "jobs.py:", "num_workers=", saving, "CPU only"):
        assert words in result.output
    assert "\x1b" not in result.output, "no colours where there is no terminal"


def test_a_healthy_trace_gets_a_clean_bill() -> None:
    assert "Nothing above the thresholds" in run(RECORDED / "healthy.json.gz").output


def test_a_folder_is_the_ranks_of_one_run(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    shutil.copy(RECORDED / "starved.json.gz", tmp_path / "deep" / "a.json.gz")
    shutil.copy(RECORDED / "starved.json.gz", tmp_path / "b.json.gz")
    (tmp_path / "c.json").write_bytes(gzip.decompress((RECORDED / "fed.json.gz").read_bytes()))
    (tmp_path / "settings.json").write_text('{"colour": "red"}')
    (tmp_path / "notes.txt").write_text("no trace")
    said = ask(tmp_path)
    assert [rank["rank"] for rank in said["ranks"]] == [0, 1, 2]
    assert len(said["findings"]) == 1, "one defect, reported once"
    assert len(said["skipped"]) == 1 and "settings.json" in said["skipped"][0]
    table = run(tmp_path).output
    assert "3 ranks" in table and "INPUT" in table and "worst on rank" in table


def test_a_file_named_twice_is_read_once() -> None:
    path = RECORDED / "fed.json.gz"
    assert len(ask(path, path)["ranks"]) == 1


@pytest.mark.parametrize("make", ["missing", "text", "cut", "no_events", "empty_folder", "folder_of_others", "url"])
def test_what_cannot_be_read_is_one_line(tmp_path: Path, make: str) -> None:
    path: Path | str = tmp_path / "x.json.gz"
    assert isinstance(path, Path)
    if make == "text":
        path.write_text("hello\nworld")
    elif make == "cut":
        path.write_bytes((RECORDED / "fed.json.gz").read_bytes()[:40])
    elif make == "no_events":
        path.write_text('{"traceEvents": []}')
    elif make == "empty_folder":
        path = tmp_path
    elif make == "folder_of_others":
        (tmp_path / "a.json").write_text("{}")
        path = tmp_path
    elif make == "url":
        path = "nosuch://host/x.json"
    ended = subprocess.run(
        [sys.executable, "-m", "tightship_platform.cli", "analyze", str(path)], capture_output=True, text=True
    )
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert ended.stdout == ""
    assert ended.stderr.startswith("tightship: ") and ended.stderr.count("\n") == 1, ended.stderr


def test_one_bad_file_among_named_ones_is_an_error_and_costs_the_others_nothing() -> None:
    result = run(RECORDED / "fed.json.gz", RECORDED / "jobs.py", "--json")
    assert isinstance(result.exception, TightshipError) and "jobs.py" in str(result.exception)
    said = json.loads(result.stdout)
    assert [rank["source"] for rank in said["ranks"]] == [str(RECORDED / "fed.json.gz")]
    assert len(said["failed"]) == 1 and "jobs.py" in said["failed"][0]


def test_names_in_a_trace_cannot_steer_the_terminal(tmp_path: Path) -> None:
    text = gzip.decompress((RECORDED / "loop.json.gz").read_bytes())
    evil = text.replace(b"aten::linear", b"aten::\\u001b[31m[red]linear\\n")
    evil = evil.replace(b"jobs.py(", b"\\u001b]0;x\\u0007[bold]jobs.py(")
    path = tmp_path / "evil.json"
    path.write_bytes(evil)
    output = run(path).output
    assert "[red]linear" in output and "[bold]jobs.py" in output, "shown as it is, not as markup"
    assert "\x1b" not in output and "\x07" not in output
    assert "\\u001b" not in json.dumps(ask(path)["findings"])


def test_a_folder_that_cannot_be_looked_into_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    shutil.copy(RECORDED / "starved.json.gz", tmp_path)
    real = os.scandir

    def scandir(path: Any = ".") -> Any:
        if str(path) == str(closed):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    among = run(tmp_path, "--jobs", "1")
    assert among.exit_code != 0 and str(closed) in str(among.exception)
    assert "starved" in among.stdout, "the others are still analyzed"
    alone = run(closed)
    assert str(alone.exception) == f"Folder {closed} cannot be read; check its permissions"


def test_a_time_needs_its_unit() -> None:
    result = run(RECORDED / "starved.json.gz", "--untraced-step", "120")
    assert result.exit_code == 2 and "120 has no unit; give a time such as 120ms" in result.output


def test_a_mistake_in_the_user_s_devices_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = GpuJob()
    work(job)
    (tmp_path / "job.json").write_bytes(job.text())
    (tmp_path / "hardware.toml").write_text('[[device]]\nvendro = "Example"\n')
    monkeypatch.setenv("TIGHTSHIP_HOME", str(tmp_path))
    result = run(tmp_path / "job.json")
    assert "has the entry 'vendro'" in str(result.exception), result.output
    assert not result.stdout
