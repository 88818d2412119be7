"""The agent beside real PyTorch jobs under `tightship run`: it tells what the job did, and the job never notices."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_rig import Rig, stop
from waiting import PATIENCE_S, wait_for

from tightship_platform.settings import load_settings

pytestmark = pytest.mark.torch

TRAIN = """
import os, sys, time, torch
torch.set_num_threads(1)
rank = int(os.environ.get("RANK", 0))
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = 0
while not os.path.exists(sys.argv[1]):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    steps += 1
    time.sleep(0.01)
# Ranks share a pipe, and where Python does not buffer, each word of a print is written by itself.
os.write(1, f"steps {rank} {steps}\\n".encode())
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def rig(make_platform_env: Callable[..., Any]) -> Iterator[Rig]:
    made = Rig(variables=make_platform_env().variables)
    yield made
    made.close()


def launch(rig: Rig, tmp_path: Path, *command: str) -> subprocess.Popen[str]:
    (tmp_path / "train.py").write_text(TRAIN)
    job = subprocess.Popen(
        [sys.executable, "-m", "tightship_platform.cli", "run", "--workflow", "mine", "--", *command],
        env=rig.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    rig.children.append(job)
    return job


def the_run(rig: Rig) -> Any:
    runs = rig.get("/runs?workflow=mine")
    return rig.get(f"/runs/{runs[0]['run']}") if runs else None


def steps_by_rank(rig: Rig) -> dict[int, int]:
    """The sum of the stored records."""
    from tightship_platform.database.engine import open_database
    from tightship_platform.database.models import StepStat

    found: dict[int, int] = {}
    with open_database(load_settings(rig.environ)) as database, database.session() as session:
        for row in session.query(StepStat):
            found[row.rank] = found.get(row.rank, 0) + row.steps
    return found


def reported(output: str) -> dict[int, int]:
    return {int(line.split()[1]): int(line.split()[2]) for line in output.splitlines() if line.startswith("steps")}


def test_the_job_goes_on_while_agents_die(rig: Rig, tmp_path: Path) -> None:
    rig.start_server()
    agent = rig.start_agent()
    job = launch(rig, tmp_path, sys.executable, str(tmp_path / "train.py"), str(tmp_path / "end"), "3")
    wait_for(lambda: (run := the_run(rig)) and run["steps"] and len(run["ranks"]) == 1)
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        stop(agent, number)
        assert job.poll() is None
        agent = rig.start_agent()
        seen = the_run(rig)["steps"]
        wait_for(lambda seen=seen: the_run(rig)["steps"] > seen)
    (tmp_path / "end").touch()
    output, errors = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 3, errors
    wait_for(lambda: steps_by_rank(rig) == reported(output))
    run = the_run(rig)
    assert (run["state"], run["exit_code"], run["steps"]) == ("failed", 3, reported(output)[0])
    assert stop(agent) == 0


def test_a_job_whose_agent_and_server_are_gone_ends_as_it_would(rig: Rig, tmp_path: Path) -> None:
    """The records of both, launcher and agent, arrive afterwards."""
    server, agent = rig.start_server(), rig.start_agent()
    job = launch(rig, tmp_path, sys.executable, str(tmp_path / "train.py"), str(tmp_path / "end"), "0")
    wait_for(lambda: (run := the_run(rig)) and run["steps"])
    stop(server, signal.SIGKILL)
    time.sleep(2)
    stop(agent)
    (tmp_path / "end").touch()
    output, errors = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, errors
    assert reported(output)
    rig.start_server()
    agent = rig.start_agent()
    wait_for(lambda: the_run(rig)["state"] == "finished")
    assert stop(agent) == 0
    assert 0 < steps_by_rank(rig)[0] <= reported(output)[0]


def test_torchrun_has_as_many_ranks_as_it_was_given(rig: Rig, tmp_path: Path) -> None:
    rig.start_server()
    agent = rig.start_agent()
    job = launch(
        rig,
        tmp_path,
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--master-port=0",
        str(tmp_path / "train.py"),
        str(tmp_path / "end"),
        "0",
    )
    run = wait_for(lambda: (r := the_run(rig)) and len(r["ranks"]) == 2 and (r["steps"] or 0) > 20 and r)
    assert [rank["rank"] for rank in run["ranks"]] == [0, 1]
    assert all(rank["guard"] for rank in run["ranks"])
    (tmp_path / "end").touch()
    output, errors = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, errors
    wait_for(lambda: steps_by_rank(rig) == reported(output))
    assert set(reported(output)) == {0, 1}
    assert stop(agent) == 0
