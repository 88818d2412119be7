"""The agent beside real PyTorch jobs under `tightship run`: it tells what the job did, and the job never notices."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_rig import Rig, stop
from light_optimizer import LIGHT_OPTIMIZER
from waiting import PATIENCE_S, wait_for

from tightship_collectors.jobs.ranks import read_ranks
from tightship_platform.settings import load_settings

pytestmark = pytest.mark.torch

TRAIN = f"""
import os, sys, time, torch
{LIGHT_OPTIMIZER}
torch.set_num_threads(1)
rank = int(os.environ.get("RANK", 0))
model = torch.nn.Linear(8, 8)
optimizer = Descent(model.parameters())
steps = 0
while not os.path.exists(sys.argv[1]):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    steps += 1
    time.sleep(0.02)
# Ranks share a pipe, and where Python does not buffer, each word of a print is written by itself.
os.write(1, f"steps {{rank}} {{steps}}\\n".encode())
sys.exit(int(sys.argv[2]))
"""


class Installation(Rig):
    """A server and an agent that can be stopped and started again."""

    def begin(self) -> None:
        self.server = self.start_server()
        self.agent = self.start_agent()


@pytest.fixture(scope="module")
def rig(make_platform_env: Callable[..., Any]) -> Iterator[Installation]:
    made = Installation(variables=make_platform_env().variables)
    made.begin()
    yield made
    assert stop(made.agent) == 0
    made.close()


def launch(rig: Rig, tmp_path: Path, *launcher: str, workflow: str, code: int = 0) -> subprocess.Popen[str]:
    """Start the script, which trains until there is a file `end`, and then ends with that code."""
    (tmp_path / "train.py").write_text(TRAIN)
    command = [sys.executable, *launcher, str(tmp_path / "train.py"), str(tmp_path / "end"), str(code)]
    job = subprocess.Popen(
        [sys.executable, "-m", "tightship_platform.cli", "run", "--workflow", workflow, "--", *command],
        env=rig.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    rig.children.append(job)
    return job


def the_run(rig: Rig, workflow: str) -> Any:
    runs = rig.get(f"/runs?workflow={workflow}")
    return rig.get(f"/runs/{runs[0]['run']}") if runs else None


def steps_by_rank(rig: Rig, run: str) -> dict[int, int]:
    """The sum of the stored records."""
    from tightship_platform.database.engine import open_database
    from tightship_platform.database.models import Run, StepStat

    found: dict[int, int] = {}
    with open_database(load_settings(rig.environ)) as database, database.session() as session:
        for row in session.query(StepStat).join(Run).filter(Run.key == run):
            found[row.rank] = found.get(row.rank, 0) + row.steps
    return found


def stored_steps(rig: Rig, run: str, expected: dict[int, int]) -> dict[int, int]:
    """What is stored once it is as expected, or after all patience."""
    with contextlib.suppress(AssertionError):
        wait_for(lambda: steps_by_rank(rig, run) == expected)
    return steps_by_rank(rig, run)


def reported(output: str) -> dict[int, int]:
    return {int(line.split()[1]): int(line.split()[2]) for line in output.splitlines() if line.startswith("steps")}


def test_the_job_goes_on_while_agents_die(rig: Installation, tmp_path: Path) -> None:
    job = launch(rig, tmp_path, workflow="lonely", code=3)
    wait_for(lambda: (run := the_run(rig, "lonely")) and run["steps"] and len(run["ranks"]) == 1)
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        stop(rig.agent, number)
        assert job.poll() is None
        rig.agent = rig.start_agent()
        seen = the_run(rig, "lonely")["steps"]
        wait_for(lambda seen=seen: the_run(rig, "lonely")["steps"] > seen)
    (tmp_path / "end").touch()
    output, errors = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 3, errors
    key = the_run(rig, "lonely")["run"]
    assert stored_steps(rig, key, reported(output)) == reported(output)
    run = the_run(rig, "lonely")
    assert (run["state"], run["exit_code"], run["steps"]) == ("failed", 3, reported(output)[0])


def test_a_job_whose_agent_and_server_are_gone_ends_as_it_would(rig: Installation, tmp_path: Path) -> None:
    """The records of both, launcher and agent, arrive afterwards."""
    job = launch(rig, tmp_path, workflow="alone")
    wait_for(lambda: (run := the_run(rig, "alone")) and run["steps"])
    stop(rig.server, signal.SIGKILL)
    time.sleep(2)
    stop(rig.agent)
    (tmp_path / "end").touch()
    output, errors = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, errors
    assert reported(output)
    rig.begin()
    wait_for(lambda: the_run(rig, "alone")["state"] == "finished")
    assert stop(rig.agent) == 0
    rig.agent = rig.start_agent()
    assert 0 < steps_by_rank(rig, the_run(rig, "alone")["run"])[0] <= reported(output)[0]


def test_torchrun_has_as_many_ranks_as_it_was_given(rig: Installation, tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0")
    job = launch(rig, tmp_path, *torchrun, workflow="two")
    run = wait_for(lambda: (r := the_run(rig, "two")) and len(r["ranks"]) == 2 and (r["steps"] or 0) > 20 and r)
    assert [rank["rank"] for rank in run["ranks"]] == [0, 1]
    assert all(rank["guard"] for rank in run["ranks"])
    views = read_ranks(rig.runtime_dir / run["run"])
    assert [(view.rank, view.world_size, view.guard) for view in views if view.is_rank] == [(0, 2, True), (1, 2, True)]
    assert [(view.rank, view.steps) for view in views if not view.is_rank] == [(-1, 0)], "the launcher is no rank"
    (tmp_path / "end").touch()
    output, errors = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, errors
    assert set(reported(output)) == {0, 1}
    assert stored_steps(rig, run["run"], reported(output)) == reported(output)
