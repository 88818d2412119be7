"""The oversized example: captured as it trains, planned from that trace, run through a window, and the same losses."""

from __future__ import annotations

import gzip
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import Running, own, tightship
from services import free_port
from waiting import PATIENCE_S, wait_for

from tightship_analyzers.offload_planner.traced import profile_of_trace
from tightship_offload.plan.file import read_plan

pytestmark = pytest.mark.torch

SCRIPT = Path(__file__).parents[3] / "examples" / "oversized_gpt.py"
SIZES = ("--layers", "4", "--width", "64")
DELIVERED = ("uploaded", "analyzed", "failed")
NODE = "autograd::engine::evaluate_function: "


@pytest.mark.timeout(900)
def test_from_a_capture_to_the_same_losses_and_a_page_that_compares(
    make_platform_env: Callable[..., Any], tmp_path: Path
) -> None:
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    settings = {"TIGHTSHIP_SERVER": base, "OMP_NUM_THREADS": "1"}
    environ = make_platform_env(migrated=False).environ | settings
    trace, plan = tmp_path / "trace.json.gz", tmp_path / "plan.yaml"
    launched = ("run", "--workflow", "oversized", "--")
    train = (sys.executable, str(SCRIPT), *SIZES, "--steps")
    with (
        Running(environ, "up", "--port", str(port)) as up,
        httpx.Client(base_url=base, auth=own(environ), trust_env=False, timeout=PATIENCE_S) as api,
    ):
        up.hear("Dashboard:")
        with Running(environ, *launched, *train, "1000000") as plain:
            plain.hear("step 30:")
            asked = ("profile", "oversized", "--stacks", "--shapes", "--iterations", "4", "--wait", "--json")
            with Running(environ, *asked) as capturing:
                wait_for(lambda: [one for one in api.get("/api/v1/captures").json() if one["state"] in DELIVERED])
                plain.end(signal.SIGINT)
                captured = capturing.output()
                assert capturing.process.returncode == 0, captured + plain.output()
            losses = [line for line in plain.output().splitlines() if line.startswith("step ")][:3]
        [rank] = json.loads(captured)["ranks"]
        trace.write_bytes(api.get(f"/api/v1/traces/{rank['trace']}/file").raise_for_status().content)

        planned = tightship(environ, "offload", "plan", str(trace), "--device-memory", "12MiB", "-o", str(plan))
        assert planned.returncode == 0, planned.stderr
        window = read_plan(plan).window
        assert len(window.resident) + window.slots < 4, "the cap leaves no room for all layers"

        windowed = tightship(environ, *launched[:-1], "--offload", str(plan), "--", *train, "30")
        assert windowed.returncode == 0, windowed.stderr
        assert [line for line in windowed.stdout.splitlines() if line.startswith("step ")] == losses

        run = api.get("/api/v1/runs", params={"workflow": "oversized", "limit": 1}).json()[0]["run"]
        told = api.get(f"/api/v1/runs/{run}").json()["offload"]
    assert (told["plan"]["layers"], told["plan"]["slots"]) == (4, window.slots)
    assert told["predicted_ns"] == round(read_plan(plan).prediction.step_ns.value)  # type: ignore[union-attr]
    assert told["measured_ns"] > 0
    cut = cut_within_the_second_backward(trace, tmp_path / "cut.json")
    assert profile_of_trace(cut).model == profile_of_trace(trace).model


def cut_within_the_second_backward(trace: Path, cut: Path) -> Path:
    """What a shorter recording had shown: an average over its two backwards would be of no model."""
    document = json.loads(gzip.decompress(trace.read_bytes()))

    def times(name: str) -> list[float]:
        return sorted(one["ts"] for one in document["traceEvents"] if one.get("name") == NODE + name)

    begun = times("NllLossBackward0")[1]
    end = (begun + next(at for at in times("EmbeddingBackward0") if at > begun)) / 2
    document["traceEvents"] = [one for one in document["traceEvents"] if one.get("ts", 0) < end]
    cut.write_text(json.dumps(document))
    return cut
