"""From a workflow's captured traces to a plan: which trace is taken, and what is said where there is none."""

from __future__ import annotations

import gzip
import shlex
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest
import yaml
from api_calls import Served, serving
from captured_workflow import MACHINE, record, store
from click.testing import CliRunner
from made_records import make

from tightship_analyzers.commands.offload import offload
from tightship_analyzers.offload_planner.profile import write_profile
from tightship_analyzers.offload_planner.sources import MOST_TRIED, command_for, lacking, sources
from tightship_analyzers.offload_planner.traced import profile_of_trace
from tightship_analyzers.offload_planner.workflow_profile import profile_of_workflow
from tightship_offload.errors import PlanError
from tightship_offload.plan.file import read_plan
from tightship_platform.errors import ServerUnreachable, TightshipError
from tightship_platform.results.capture import Capture
from tightship_platform.results.plan_answer import PlanSource
from tightship_platform.wire import CaptureParams

FIXTURES = Path(__file__).parents[2] / "data" / "traces"


def capture(key: str = "c1", state: str = "analyzed", *, ranks: tuple[int, ...] = (0,), **more: Any) -> Capture:
    """As `queries.captures` lists one."""
    params = {"stacks": more.pop("stacks", True), "shapes": more.pop("shapes", True)}
    rank = {"url": "/api/v1/traces/1/file", "sha256": "a" * 64, "bytes": 10, "trace": 1, "error": None, "pid": 1}
    listed = [rank | {"rank": number} | more.pop("of_rank", {}) for number in ranks]
    found = {"capture": key, "run": "a1", "state": state, "reason": None, "requested_ns": 5, "params": params}
    return make(Capture, found, ranks=listed, **more)


@pytest.mark.parametrize(
    ("captures", "words"),
    [
        ([], "no trace of it was captured"),
        ([capture(state="requested", ranks=())], "a capture is under way"),
        ([capture(stacks=False)], "its newest trace was recorded without stacks"),
        ([capture(stacks=False, shapes=False)], "its newest trace was recorded without stacks and shapes"),
        ([capture(shapes=False), capture("c0", of_rank={"url": None})], "its newest trace was recorded without shapes"),
        ([capture(of_rank={"url": None})], "the files of its traces were removed, or could not be read"),
        ([capture(of_rank={"error": "no JSON"})], "the files of its traces were removed, or could not be read"),
        ([capture(state="failed", reason="run ended", ranks=())], "its newest capture failed: run ended"),
        ([capture(state="expired", ranks=())], "its newest capture expired: no reason was given"),
        ([capture(shapes=False), capture("c0")], ""),
    ],
)
def test_what_a_workflow_lacks(captures: list[Capture], words: str) -> None:
    assert lacking(captures) == words
    assert bool(sources(captures)) == (not words)


def test_the_newest_suitable_traces_are_tried_in_order() -> None:
    listed = [capture("c9", shapes=False), *[capture(f"c{number}", ranks=(0, 1)) for number in range(8, 1, -1)]]
    found = sources(listed)
    assert [one.capture for one in found] == ["c8", "c7", "c6"][:MOST_TRIED]
    assert {one.rank for one in found} == {0}


def test_the_command_quotes_the_name() -> None:
    assert shlex.split(command_for("a b'c; rm -rf $HOME"))[-1] == "a b'c; rm -rf $HOME"
    assert shlex.split(command_for("--help"))[-2:] == ["--", "--help"]


@pytest.mark.torch
def test_a_trace_that_holds_no_training_gives_way_to_the_one_before_it(trace_data: bytes, tmp_path: Path) -> None:
    found = sources([capture("c2"), capture("c1")])

    def fetch(source: PlanSource, file: IO[bytes]) -> None:
        fixture = FIXTURES / "loop_without_gradient.json.gz"
        file.write(trace_data if source.capture == "c1" else fixture.read_bytes())

    profile, used = profile_of_workflow(found, fetch)
    assert used.capture == "c1"
    (tmp_path / "trace.json").write_bytes(gzip.decompress(trace_data))
    assert profile == profile_of_trace(tmp_path / "trace.json")
    with pytest.raises(PlanError, match="No layers can be seen"):
        profile_of_workflow(found[:1], fetch)


def test_a_file_that_is_no_trace_is_named_by_its_capture() -> None:
    with pytest.raises(PlanError) as caught:
        profile_of_workflow(sources([capture("c7")]), lambda _source, file: void(file.write(b"\x1f\x8brubbish")))
    assert "of capture c7" in str(caught.value)
    assert "/tmp" not in str(caught.value)


def void(_value: object) -> None:
    """Nothing."""


@pytest.fixture(scope="module")
def trace_data(warm: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return record(tmp_path_factory.mktemp("recorded"), python=warm)


@pytest.fixture
def served(platform_env: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    with serving(platform_env.settings) as server:
        monkeypatch.setenv("TIGHTSHIP_SERVER", server.url)
        yield server


@pytest.mark.torch
def test_plan_from_a_workflow(served: Served, trace_data: bytes, tmp_path: Path) -> None:
    rates, plan = tmp_path / "machine.yaml", tmp_path / "plan.yaml"
    (tmp_path / "trace.json").write_bytes(gzip.decompress(trace_data))
    profile = profile_of_trace(tmp_path / "trace.json")
    write_profile(replace(profile, hardware=MACHINE), rates)
    name = "blocks/of ü"
    with served.http() as api:
        key = store(api, trace_data, "00000000000000a1", name)
    arguments = ["plan", "--workflow", name, "-o", str(plan), "--device-memory", "1900KiB", "--hardware", str(rates)]
    result = CliRunner().invoke(offload, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert f"Planned from rank 0 of capture {key} of run 00000000000000a1." in result.output
    of_trace = tmp_path / "of_trace.yaml"
    same = [str(one) for one in ("plan", tmp_path / "trace.json", "-o", of_trace, *arguments[5:])]
    CliRunner().invoke(offload, same, catch_exceptions=False)
    assert read_plan(plan) == read_plan(of_trace)


def refused(*arguments: str) -> str:
    with pytest.raises(TightshipError) as caught:
        CliRunner().invoke(offload, ["plan", *arguments], catch_exceptions=False)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_cannot_be_planned_is_one_line_with_the_next_step(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "machine.yaml").write_text(yaml.safe_dump(machine_of_tests()))
    given = ("--hardware", "machine.yaml")
    with served.http() as api:
        store(api, gzip.compress(b"{}"), "00000000000000b1", "bare", shapes=False)
        store(api, gzip.compress(b'{"traceEvents": []}'), "00000000000000b2", "hollow")
    said = refused("--workflow", "nope", *given)
    assert said == (
        "Workflow 'nope' cannot be planned: no trace of it was captured; try `tightship profile --stacks --shapes "
        "--wait nope`"
    )
    assert "recorded without shapes" in refused("--workflow", "bare", *given)
    assert refused("--workflow", "hollow", *given)
    assert "Give either SOURCE or --workflow" in refused()
    assert "both 'x.yaml' and --workflow" in refused("x.yaml", "--workflow", "bare")
    monkeypatch.setenv("TIGHTSHIP_SERVER", "http://127.0.0.1:9")
    with pytest.raises(ServerUnreachable):
        CliRunner().invoke(offload, ["plan", "--workflow", "x", *given], catch_exceptions=False)
    assert not (tmp_path / "plan.yaml").exists()


def machine_of_tests() -> dict[str, Any]:
    layer = {
        "forward_ns": 1,
        "backward_ns": 1,
        "parameters": 1,
        "trainable": 1,
        "activation_bytes": 1,
        "input_bytes": 1,
    }
    model = {"name": "x", "layer_parameters": [1, 1]}
    return {
        "version": 1,
        "model": model,
        "layers": [dict(layer), layer],
        "origin": "measured",
        "hardware": MACHINE.as_mapping(),
    }


def test_captures_are_asked_for_with_stacks_and_shapes_unless_said_otherwise() -> None:
    assert CaptureParams().stacks and CaptureParams().shapes
