"""How well the planner's simulation tells the step time of the engine: plans under injected transfer delays.

A model is timed by the probe, layer by layer, as `tightship offload measure` does. Then plans with different slots,
resident layers, micro-batches and delays run on the CPU backend, each transfer delayed by a fixed time as if it went
over a slow link, and the median step is put beside the simulated one. Delays sleep. So does the computation, unless
`--real` asks for matrix products: then the machine must do nothing else, and have a core for each lane.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import tightship_offload as offload
from tightship_analyzers.offload_planner.candidate import Candidate, Rules, links_of
from tightship_analyzers.offload_planner.measured import profile_of
from tightship_analyzers.offload_planner.profile import Profile
from tightship_analyzers.offload_planner.rates import hardware
from tightship_analyzers.offload_planner.schedule import Links
from tightship_analyzers.offload_planner.simulate import simulate
from tightship_offload.backends.cpu import CpuBackend
from tightship_offload.job.probe import Probe
from tightship_offload.plan.model import Clipping, HardwareSpec

OUT = Path(__file__).parent / "out" / "offload_prediction.json"
LAYERS, WIDTH, TOKENS = 8, 256, 768
FORWARD_S = (0.010, 0.020)
"""Of a layer that sleeps, in turns; backward takes twice as long."""


class SlowLinks(CpuBackend):
    """Every transfer begins `delay_s` late."""

    def __init__(self, delay_s: float) -> None:
        super().__init__()
        self._transfer_s = delay_s

    def before_work(self, lane: str) -> None:
        if lane in ("h2d", "d2h"):
            time.sleep(self._transfer_s)


class Sleep(torch.autograd.Function):
    """Computation of a known length."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(2 * ctx.seconds)
        return gradient.clone(), None


class Sleeper(nn.Module):
    def __init__(self, width: int, seconds: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        return Sleep.apply(x * self.scale, self.seconds * len(x) / TOKENS)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, real: bool) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        sleepers = (Sleeper(WIDTH, FORWARD_S[number % 2]) for number in range(LAYERS))
        self.blocks = nn.ModuleList((Block(WIDTH) for _ in range(LAYERS)) if real else sleepers)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def make(real: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Net(real)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer, micro_batches: int) -> Callable[[], None]:
    batch = torch.randn(TOKENS // micro_batches, WIDTH)

    def step() -> None:
        for _ in range(micro_batches):
            model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def profiled(machine: HardwareSpec, micro_batches: int, steps: int, real: bool) -> Profile:
    model, optimizer = make(real)
    records: list[dict[str, Any]] = []
    probe = Probe(model, optimizer, steps, records.append)
    step = step_of(model, optimizer, micro_batches)
    while not records:
        step()
    assert probe.blocks
    return profile_of(records[0], machine)


def timed(slots: int, resident: frozenset[int], delay_s: float, micro_batches: int, steps: int, real: bool) -> float:
    """The median step in ns."""
    model, optimizer = make(real)
    offload.apply(model, optimizer, window=slots, resident=resident, backend=SlowLinks(delay_s))
    step = step_of(model, optimizer, micro_batches)
    spent = []
    for number in range(steps + 3):
        begin = time.perf_counter_ns()
        step()
        if number >= 3:
            spent.append(time.perf_counter_ns() - begin)
    offload.engine_of(model).remove()
    return statistics.median(spent)


def predicted(
    profile: Profile, machine: HardwareSpec, slots: int, resident: frozenset[int], delay_s: float, micro_batches: int
) -> int:
    """The simulated step in ns."""
    one = Candidate(
        profile=profile,
        hardware=machine,
        rules=Rules(clipping=Clipping.NONE, threads=1),
        slots=slots,
        resident=resident,
        gpu_resident=resident,
        micro_batches=micro_batches,
    )
    plain = links_of(machine)
    links = Links(
        h2d=plain.h2d,
        d2h=plain.d2h,
        h2d_duplex=plain.h2d_duplex,
        d2h_duplex=plain.d2h_duplex,
        latency_ns=round(delay_s * 1e9),
    )
    return simulate(one.work, links, one.choice).step_ns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--real", action="store_true", help="layers of matrix products instead of sleeps")
    given = parser.parse_args()
    steps = given.steps
    torch.set_num_threads(1)
    machine = hardware()
    torch.set_num_threads(1)
    rows = []
    kept = [frozenset[int](), frozenset({0, 4})]
    for micro_batches in (1, 2):
        for slots, resident, delay_ms in itertools.product((2, 4), kept, (2, 8, 30)):
            # Each plan right after a fresh profile: on a shared machine the processor's speed drifts.
            profile = profiled(machine, micro_batches, steps, given.real)
            actual = timed(slots, resident, delay_ms / 1e3, micro_batches, steps, given.real)
            simulated = predicted(profile, machine, slots, resident, delay_ms / 1e3, micro_batches)
            rows.append(
                {
                    "slots": slots,
                    "resident": len(resident),
                    "micro_batches": micro_batches,
                    "delay_ms": delay_ms,
                    "actual_ms": actual / 1e6,
                    "simulated_ms": simulated / 1e6,
                    "error_frac": simulated / actual - 1,
                }
            )
    table = Table(title="Simulated against actual step time, CPU backend, delayed transfers")
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    console = Console()
    console.print(table)
    errors = sorted(abs(row["error_frac"]) for row in rows)
    summary = {
        "plans": len(rows),
        "real": given.real,
        "median_error_frac": statistics.median(errors),
        "worst_error_frac": errors[-1],
    }
    console.print(
        f"{len(rows)} plans: median error {summary['median_error_frac']:.1%}, worst {summary['worst_error_frac']:.1%}"
    )
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps({"rows": rows, **summary}, indent=2) + "\n")


if __name__ == "__main__":
    main()
