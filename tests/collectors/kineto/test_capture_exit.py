"""Jobs that end at a random moment of a capture end with the exit code that they have without us, and the capture says
what became of it.

`make test` runs a slice. The whole storm: TIGHTSHIP_EXIT_STORM=60 (number of jobs) or `make exit-storm`, which also
measures the exit codes without us. TIGHTSHIP_EXIT_SEED repeats a storm; the names of its tests begin with it.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agent_rig import Rig
from capture_jobs import EXIT_CODES, ask, outcome, start_torch_job, torch_command

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SLICE = 2
JOBS = int(os.environ.get("TIGHTSHIP_EXIT_STORM", str(SLICE)))
SEED = int(os.environ.get("TIGHTSHIP_EXIT_SEED") or os.environ["TIGHTSHIP_SLICE"])
LONGEST_CAPTURE_S = 6.0
"""From the request to the complete file; the ends are spread over it."""

WAYS = [(how, ranks) for how in EXIT_CODES for ranks in (1, 2)]


@dataclass(frozen=True)
class Draw:
    """One job of the storm."""

    number: int
    how: str
    ranks: int
    after_s: float
    """From the request of the capture to the end of the training loop."""
    params: dict[str, Any]

    def __str__(self) -> str:
        kind = "torchrun" if self.ranks > 1 else "single"
        window = "iterations" if "iterations" in self.params else "duration"
        return f"{SEED}-{self.number}-{kind}-{self.how}-{window}-{self.after_s:.2f}s"


def draws() -> list[Draw]:
    """Every way of ending, single and torchrun, in turn; the moments are stratified: a slice covers all stages."""
    dice = random.Random(SEED)
    moments = [(number + dice.random()) / JOBS * LONGEST_CAPTURE_S for number in range(JOBS)]
    dice.shuffle(moments)
    ways = dice.sample(WAYS, len(WAYS))
    params: list[dict[str, Any]] = [{"duration_ns": n * 10**8} for n in (5, 10, 20)] + [{"iterations": 50}]
    return [
        Draw(number, *ways[number % len(ways)], after_s=moments[number], params=dice.choice(params))
        for number in range(JOBS)
    ]


def expected_exit_code(how: str, ranks: int) -> int:
    """What the job ends with by itself: torchrun makes 1 of every failure."""
    return min(EXIT_CODES[how], 1) if ranks > 1 else EXIT_CODES[how]


@pytest.fixture(scope="module")
def rig(make_platform_env: Callable[..., Any]) -> Iterator[Rig]:
    made = Rig(variables=make_platform_env().variables)
    made.start_server()
    made.start_agent()
    yield made
    made.close()


@pytest.mark.parametrize("draw", draws(), ids=str)
def test_a_job_that_ends_during_its_capture(rig: Rig, tmp_path: Path, draw: Draw) -> None:
    job = start_torch_job(rig, tmp_path, workflow=f"storm-{draw.number}", how=draw.how, ranks=draw.ranks)
    job.end_at(time.time() + draw.after_s)
    key = ask(rig, job.run, **draw.params)
    exit_code = job.process.wait(90)
    assert exit_code == expected_exit_code(draw.how, draw.ranks), job.printed()[-3000:]
    capture = outcome(rig, key)
    assert capture["state"] in ("uploaded", "analyzed") or (
        capture["state"] == "failed" and capture["reason"].startswith("run ended")
    ), f"{capture['state']}: {capture['reason']}"


if JOBS > SLICE:

    @pytest.mark.parametrize(("how", "ranks"), WAYS)
    def test_the_exit_codes_without_us(tmp_path: Path, how: str, ranks: int) -> None:
        (tmp_path / "end").write_text(str(time.time()))
        command = torch_command(tmp_path, how=how, ranks=ranks)
        ended = subprocess.run(command, capture_output=True, timeout=120, check=False)
        assert ended.returncode == expected_exit_code(how, ranks)
