"""From the trace of an ordinary run to a plan, and from the plan to the same training."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from captured_workflow import JOB, MACHINE
from click.testing import CliRunner

from tightship_analyzers.commands.offload import offload
from tightship_analyzers.offload_planner.profile import Origin, write_profile
from tightship_analyzers.offload_planner.traced import profile_of_trace
from tightship_offload.errors import PlanError
from tightship_offload.plan.file import read_plan
from tightship_platform.errors import TightshipError

pytestmark = pytest.mark.torch

INJECT = Path(__file__).parents[3] / "collectors" / "tightship_collectors" / "inject"
BLOCK = 64 * 2 + (64 * 256 + 256) + (256 * 64 + 64)
REST = 50 * 64 + 64 * 50 + 50
LIKE = ("like", "nested", "stages", "listed", "held")
UNLIKE = ("unlike", "unlike_chain", "attributes")


Python = tuple[str, ...]


def job(python: Python, folder: Path, *arguments: str, **variables: str) -> str:
    env = {key: value for key, value in os.environ.items() if not key.startswith("TIGHTSHIP_")}
    env |= {"PYTHONPATH": str(INJECT), "OMP_NUM_THREADS": "1"} | variables
    command = [*python, str(JOB), *arguments]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def trace(warm: Python, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traced")
    job(warm, folder, str(folder / "trace.json"), "record")
    return folder / "trace.json"


def test_a_trace_tells_layers_parameters_and_batch(trace: Path) -> None:
    profile = profile_of_trace(trace)
    assert profile.model.layer_parameters == (BLOCK,) * 5
    assert profile.model.rest_parameters == REST
    assert (profile.model.name, profile.model.block) == ("Net", "Block")
    assert (profile.micro_batches, profile.batch, profile.tokens) == (2, 4, 128)
    assert (profile.steps, profile.clips, profile.state_bytes_per_parameter) == (3, True, 8)
    assert profile.origin is Origin.TRACE
    tokens = 4 * 32
    assert [layer.input_bytes for layer in profile.layers] == [tokens * 64 * 4] * 5
    # The norm's input and output, and what relu gives to the second product; biases are counted, too.
    kept_bytes = tokens * (64 + 64 + 256) * 4
    assert all(kept_bytes <= layer.activation_bytes < kept_bytes * 1.01 for layer in profile.layers)
    assert all(layer.forward_ns > 0 and layer.backward_ns > 0 for layer in profile.layers)


def test_a_recomputing_loop_is_recognised(warm: Python, tmp_path: Path) -> None:
    job(warm, tmp_path, str(tmp_path / "trace.json"), "record", "recompute")
    profile = profile_of_trace(tmp_path / "trace.json")
    assert profile.recompute.value == "layer"
    assert profile.model.layer_parameters == (BLOCK,) * 5
    assert profile.model.rest_parameters == REST
    assert profile.micro_batches == 2


def test_from_a_trace_to_the_same_training(warm: Python, trace: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    rates = tmp_path / "machine.yaml"
    profile = profile_of_trace(trace)

    write_profile(replace(profile, hardware=MACHINE), rates)
    arguments = ["plan", str(trace), "-o", str(plan), "--device-memory", "1900KiB", "--hardware", str(rates), "--json"]
    result = CliRunner().invoke(offload, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    made = read_plan(plan)
    assert json.loads(result.stdout)["plan"]["window"]["slots"] == made.window.slots
    assert made.moving
    assert made.prediction is not None and made.prediction.device_bytes <= 1900 * 1024
    assert job(warm, tmp_path) == job(warm, tmp_path, TIGHTSHIP_OFFLOAD_PLAN=str(plan))


@pytest.fixture(scope="module")
def contained(warm: Python, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Traces of models by name, and what the runtime makes of each."""
    folder = tmp_path_factory.mktemp("contained")
    command = [*warm, str(Path(__file__).with_name("container_job.py")), str(folder), *LIKE, *UNLIKE]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", LIKE)
def test_the_layers_of_a_trace_are_those_of_the_runtime(contained: tuple[Path, dict[str, Any]], name: str) -> None:
    folder, of_runtime = contained
    assert list(profile_of_trace(folder / f"{name}.json").model.layer_parameters) == of_runtime[name]


@pytest.mark.parametrize("name", UNLIKE)
def test_a_model_that_the_runtime_refuses_gets_no_plan(contained: tuple[Path, dict[str, Any]], name: str) -> None:
    folder, of_runtime = contained
    with pytest.raises(PlanError) as caught:
        profile_of_trace(folder / f"{name}.json")
    assert "has no repeated blocks" in of_runtime[name]
    assert "name its layers in the script: tightship_offload.apply(model, optimizer, window=" in of_runtime[name]
    assert str(caught.value) == f"No layers can be seen: in its calls, {of_runtime[name]}"
    assert "\n" not in str(caught.value)


def test_what_a_trace_must_have(tmp_path: Path) -> None:
    fixtures = Path(__file__).parents[2] / "data" / "traces"
    with pytest.raises((PlanError, TightshipError)) as caught:
        profile_of_trace(fixtures / "loop_without_gradient.json.gz")
    assert "\n" not in str(caught.value)
    with pytest.raises(TightshipError):
        profile_of_trace(tmp_path / "absent.json")
