"""Real torch jobs under `tightship run`, and captures of them, for tests of the whole capture path."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rig import Rig
from light_optimizer import LIGHT_OPTIMIZER
from services import free_port
from waiting import PATIENCE_S, wait_for

from tightship_collectors.jobs.ranks import read_ranks

SCRIPT = f'''
"""An ordinary training script. It trains until a file says how long to go on, and ends as the file says."""
import os, sys, time
import torch
import torch.distributed as dist
{LIGHT_OPTIMIZER}

how, trigger = sys.argv[1:3]
torch.set_num_threads(1)
world = int(os.environ.get("WORLD_SIZE", "1"))
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
light = how in ("light", "stretched")
if world > 1:
    dist.init_process_group("gloo")
    if not light:
        model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = Descent(model.parameters()) if light else torch.optim.SGD(model.parameters(), lr=1e-3)
parent, end = os.getppid(), None

late = how == "late" and os.environ.get("RANK") == "2"

def step():
    if late:
        time.sleep(0.1)
    loss = model(torch.randn(32, 64)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    if world > 1 and light:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    optimizer.step()

own_profiler_at = time.time() + 5
while True:
    step()
    time.sleep(0.05)  # a job that waits leaves the cores to the tests beside it, and traces are small
    if how == "stretched" and sys.getprofile() is not None:
        time.sleep(0.15)  # a recording of its calls costs as much as if there were very many of them
    if how == "own-profiler" and time.time() > own_profiler_at:
        with torch.profiler.profile():
            for _ in range(20):
                step()
                time.sleep(0.002)
        print("profiled itself", flush=True)
        own_profiler_at = time.time() + 1.3
    if end is None and os.path.exists(trigger):
        end = float(open(trigger).read())
    # Whoever started it is gone: nobody will tell it to end.
    over = torch.tensor(float(os.getppid() != parent or time.time() > (end or time.time())))
    if world > 1:
        dist.all_reduce(over, op=dist.ReduceOp.MAX)
    if over.item():
        break
if world > 1:
    del model  # it holds the group: one that goes with the interpreter may abort, with and without us
    dist.destroy_process_group()
if how == "exit-3":
    sys.exit(3)
if how == "raise":
    raise RuntimeError("planned")
'''

EXIT_CODES = {"return": 0, "exit-3": 3, "raise": 1}
"""What the script ends with by itself. torchrun makes 1 of every failure."""


@dataclass(kw_only=True)
class TorchJob:
    """A job under `tightship run`."""

    process: subprocess.Popen[str]
    workflow: str
    run: str
    trigger: Path
    output: Path

    def end_at(self, time_s: float) -> None:
        """Have it end at that time (Unix)."""
        draft = self.trigger.with_name("draft")
        draft.write_text(str(time_s))
        draft.rename(self.trigger)

    def end(self, timeout_s: float = PATIENCE_S) -> int:
        """Have it end now; returns the exit code."""
        self.end_at(time.time())
        return self.process.wait(timeout_s)

    def printed(self) -> str:
        """What it printed."""
        return self.output.read_text(errors="replace")


def torch_command(folder: Path, *, how: str, ranks: int) -> list[str]:
    """The job as its user would start it; it trains until `<folder>/end` holds a time that has passed."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "train.py"
    script.write_text(SCRIPT)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", str(free_port())]
    return [sys.executable, *(launcher if ranks > 1 else []), str(script), how, str(folder / "end")]


def start_torch_job(
    rig: Rig, folder: Path, *, workflow: str, how: str = "return", ranks: int = 1, options: tuple[str, ...] = ()
) -> TorchJob:
    """Launch the script and wait until the server knows it and all its ranks train."""
    output = folder / "output"
    launch = [sys.executable, "-m", "tightship_platform.cli", "run", "--workflow", workflow, *options, "--"]
    command = torch_command(folder, how=how, ranks=ranks)
    with output.open("w") as log:
        process = subprocess.Popen(
            launch + command,
            env=rig.environ | {"OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
            text=True,
        )
    rig.children.append(process)

    def training() -> str | None:
        assert process.poll() is None, output.read_text()
        of_workflow = [run for run in rig.get("/runs") or [] if run["workflow"] == workflow]
        live = [str(run["run"]) for run in of_workflow if run["state"] == "running"]
        if not live:
            return None
        # The server hears of steps only every few seconds; the control files have them at once.
        views = [view for view in read_ranks(rig.runtime_dir / live[0]) if view.is_rank]
        trains = len(views) == ranks and all(view.steps or "--no-steps" in options for view in views)
        return live[0] if trains else None

    run = wait_for(training)
    return TorchJob(process=process, workflow=workflow, run=run, trigger=folder / "end", output=output)


def ask(rig: Rig, target: str, **params: Any) -> str:
    """Request a capture; returns its key. A duration of 500 ms where nothing else is said."""
    given = {"duration_ns": None if "iterations" in params else 500_000_000} | params
    with rig.api as api:
        return str(api.post("/captures", {"target": target, "params": given})["capture"])


ENDED = ("uploaded", "analyzed", "failed", "expired")
"""Where no worker runs, `uploaded` is the end."""


def outcome(rig: Rig, key: str, *, states: tuple[str, ...] = ENDED, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
    """The capture once it is in one of the states."""

    def ended() -> dict[str, Any] | None:
        capture: dict[str, Any] | None = rig.get(f"/captures/{key}")
        return capture if capture is not None and capture["state"] in states else None

    found: dict[str, Any] = wait_for(ended, timeout_s=timeout_s)
    return found
