"""Trainings that keep their layers in files, killed with SIGKILL at one point after the other, and started again.

Each point is between two changes of a file, or between two halves of the in-place update of one tensor. Run by its test
in its own process, as it forks: `offload_kills.py FOLDER SEED COUNT` kills at COUNT points (0: at all).
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from offload_exactness import Model, differences, everything
from offload_loops import batch, loss_of
from torch import Tensor

import tightship_offload as offload
from tightship_offload.backends.cpu import CpuBackend
from tightship_offload.runtime import nvme

STEPS = 12
LAYERS = 3


def point(what: str) -> None:
    """A place where the process may end."""


class Halves(torch.optim.Optimizer):
    """Momentum, in place, each tensor in two halves."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                for half in (slice(None, p.numel() // 2), slice(p.numel() // 2, None)):
                    part = momentum.view(-1)[half]
                    part.mul_(0.9).add_(p.grad.reshape(-1)[half])
                    point("in the state")
                    p.view(-1)[half].sub_(part, alpha=group["lr"])
                    point("in the weights")


def make() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = Model(layers=LAYERS)
    return model, Halves(model.parameters())


def step(model: Any, optimizer: Any, number: int) -> None:
    torch.manual_seed(1000 + number)
    loss_of(model, batch()).backward()
    optimizer.step()
    optimizer.zero_grad()


def open_in(folder: Path) -> tuple[Any, Any, Any]:
    model, optimizer = make()
    machine = CpuBackend(poison=True, deadline_s=60)
    offload.apply(model, optimizer, window=2, nvme=offload.NvmeTier(folder=folder, resume=True), backend=machine)
    return model, optimizer, offload.engine_of(model)


def in_child(work: Callable[[], None]) -> int:
    """The exit status of a fork that does the work; negative: killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def train(folder: Path, kill_at: int) -> int:
    """All steps, up to a point. How many points there were."""
    global point
    count = 0

    def reached(what: str) -> None:
        nonlocal count
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    model, optimizer, engine = open_in(folder)
    point = engine._store.point = reached  # type: ignore[assignment]
    for number in range(engine.steps_done, STEPS):
        step(model, optimizer, number)
    engine.drain()
    engine.remove()
    return count


def check(folder: Path, after: list[dict[str, Tensor]]) -> None:
    """The files hold the training after a whole step, and it goes on to the same end."""
    model, optimizer, engine = open_in(folder)
    done = engine.steps_done
    assert differences(after[done], everything(model, optimizer, [])) == [], f"after a restart at step {done}"
    for number in range(done, STEPS):
        step(model, optimizer, number)
    assert differences(after[STEPS], everything(model, optimizer, [])) == [], f"at the end, from step {done}"
    assert engine.steps_done == STEPS
    engine.remove()


def main() -> None:
    folder, seed, wanted = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    nvme._CHUNK_BYTES = 4096
    if sys.argv[4:] == ["no-undo"]:  # the mutation that the test must catch
        nvme.NvmeStore._roll_back = lambda self, files: None  # type: ignore[method-assign]
    model, optimizer = make()
    after = [everything(model, optimizer, [])]
    for number in range(STEPS):
        step(model, optimizer, number)
        after.append(everything(model, optimizer, []))
    counted = folder / "points"
    assert in_child(lambda: counted.write_text(str(train(folder / "whole", 0))) and None) == 0
    points = range(1, int(counted.read_text()) + 1)
    chosen = sorted(random.Random(seed).sample(points, wanted)) if wanted else list(points)
    wrong = 0
    for kill_at in chosen:
        place = folder / f"kill{kill_at}"
        ended = in_child(lambda: train(place, kill_at) and None)  # noqa: B023 - it runs before the next one
        assert ended == -signal.SIGKILL, f"point {kill_at} of {len(points)}: ended with {ended}"
        if in_child(lambda: check(place, after)) != 0:  # noqa: B023
            wrong += 1
            sys.stdout.write(f"wrong after a kill at point {kill_at}\n")
        shutil.rmtree(place)
    sys.stdout.write(f"{len(points)} points, {len(chosen)} kills, {wrong} wrong\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
