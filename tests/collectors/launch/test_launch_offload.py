"""The file in which a job's offload runtime reports its plan: read by the launcher, which trusts none of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from launching import launch

from tightship_collectors.launch.offload_file import FILE, MAX_BYTES, read_offload


def test_whole_numbers_are_taken(tmp_path: Path) -> None:
    assert read_offload(tmp_path) == {}
    (tmp_path / FILE).write_text(json.dumps({"steps": 3, "step_ns": 7}))
    assert read_offload(tmp_path) == {"steps": 3, "step_ns": 7}


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"steps": 1.5}', '{"steps": true}', '{"a": {"b": 1}}', "[" * 100_000, "1" * (MAX_BYTES + 1)]
)
def test_anything_else_is_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert read_offload(tmp_path) == {}


def test_a_link_or_a_pipe_is_not_followed(tmp_path: Path) -> None:
    import os

    (tmp_path / "elsewhere").write_text('{"steps": 1}')
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere")
    assert read_offload(tmp_path) == {}
    (tmp_path / FILE).unlink()
    os.mkfifo(tmp_path / FILE)
    assert read_offload(tmp_path) == {}


@pytest.mark.parametrize(("options", "said"), [((), 1), (("--offload-optional",), 0)])
def test_a_plan_that_no_process_applied_is_reported(tmp_path: Path, options: tuple[str, ...], said: int) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("version: 1\n")
    done = launch("true", options=("--offload", str(plan), *options))
    assert done.returncode == 0
    assert done.stderr.count(f"{plan} was not applied: no process of the job took a step") == said
    assert "was not applied" not in launch("false", options=("--offload", str(plan), *options)).stderr


@pytest.mark.parametrize(("given", "found"), [((), "None"), (("--offload-deadline", "90"), "90")])
def test_the_job_gets_the_deadline_of_its_waits(tmp_path: Path, given: tuple[str, ...], found: str) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("version: 1\n")
    look = "import os; print(os.environ.get('TIGHTSHIP_OFFLOAD_DEADLINE'))"
    done = launch(sys.executable, "-c", look, options=("--offload", str(plan), *given))
    assert (done.returncode, done.stdout) == (0, f"{found}\n")


def test_a_deadline_out_of_range_is_refused(tmp_path: Path) -> None:
    done = launch("true", options=("--offload-deadline", "0"))
    assert done.returncode == 2 and "0.0 is not in the range 1<=x<=604800" in done.stderr
