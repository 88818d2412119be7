"""Is the recommended window the best one? Planned from a measured profile, then every window is run.

Five models and links on the CPU backend, where computation and transfers are waits of known length (as in
`offload_prediction.py`), so that a busy machine changes little. For each, the planner recommends a window within a
budget of device memory; then all windows of that budget run for real, and the recommended one's step is put beside the
shortest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from offload_prediction import WIDTH, Sleeper, SlowLinks, step_of
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import tightship_offload as offload
from tightship_analyzers.offload_planner.candidate import Candidate, Rules, spread_over
from tightship_analyzers.offload_planner.constraints import Constraints
from tightship_analyzers.offload_planner.measured import profile_of
from tightship_analyzers.offload_planner.planner import search
from tightship_analyzers.offload_planner.profile import Profile
from tightship_analyzers.offload_planner.rates import hardware
from tightship_offload.job.probe import Probe
from tightship_offload.plan.model import Clipping, HardwareSpec, Recompute

OUT = Path(__file__).parent / "out" / "offload_sweep.json"
MODELS: dict[str, tuple[tuple[float, ...], float, int, int]] = {
    # forward of each layer in s, delay of a transfer in s, slots and resident layers that the budget is made for
    "compute-bound": ((0.020,) * 6, 0.008, 3, 1),
    "link-bound": ((0.008,) * 6, 0.030, 2, 2),
    "balanced": ((0.015,) * 6, 0.020, 3, 2),
    "uneven": ((0.005, 0.030, 0.005, 0.030, 0.005, 0.030), 0.025, 2, 2),
    "growing": ((0.005, 0.010, 0.015, 0.020, 0.025, 0.030), 0.030, 2, 3),
}


class Net(nn.Module):
    def __init__(self, forward_s: tuple[float, ...]) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Sleeper(WIDTH, seconds) for seconds in forward_s)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def make(forward_s: tuple[float, ...]) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Net(forward_s)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def profiled(forward_s: tuple[float, ...], machine: HardwareSpec, steps: int) -> Profile:
    model, optimizer = make(forward_s)
    records: list[dict[str, Any]] = []
    probe = Probe(model, optimizer, steps, records.append)
    step = step_of(model, optimizer, 1)
    while not records:
        step()
    assert probe.blocks
    return profile_of(records[0], machine)


def timed_ms(forward_s: tuple[float, ...], slots: int, resident: frozenset[int], delay_s: float, steps: int) -> float:
    model, optimizer = make(forward_s)
    offload.apply(model, optimizer, window=slots, resident=resident, backend=SlowLinks(delay_s))
    step = step_of(model, optimizer, 1)
    spent = []
    for number in range(steps + 2):
        begin = time.perf_counter_ns()
        step()
        if number >= 2:
            spent.append(time.perf_counter_ns() - begin)
    offload.engine_of(model).remove()
    return statistics.median(spent) / 1e6


def windows(profile: Profile, machine: HardwareSpec, budget_bytes: int) -> list[tuple[int, frozenset[int]]]:
    """All slots, with the first, the last or evenly spread layers resident, that the budget holds."""
    count = len(profile.layers)
    found: dict[tuple[int, frozenset[int]], None] = {}
    for kept in range(count + 1):
        sets = (frozenset(range(kept)), frozenset(range(count - kept, count)), spread_over(range(count), kept))
        for resident in sets:
            moving = count - kept
            for slots in range(min(2, max(1, moving)), max(1, moving) + 1):
                one = Candidate(
                    profile=profile, hardware=machine, slots=slots, resident=resident, gpu_resident=resident
                )
                if one.memory.device <= budget_bytes:
                    found[(slots, resident)] = None
    return list(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    plain = hardware()
    torch.set_num_threads(1)
    rows = []
    for name, (forward_s, delay_s, slots, kept) in MODELS.items():
        profile = profiled(forward_s, plain, steps)
        rate = max(1.0, 4 * WIDTH / delay_s)  # of a layer's weights, and of its gradients
        machine = replace(
            plain,
            h2d_bytes_per_s=rate,
            d2h_bytes_per_s=rate,
            h2d_duplex_bytes_per_s=rate,
            d2h_duplex_bytes_per_s=rate,
        )
        resident = frozenset(range(kept))
        budget = Candidate(
            profile=profile, hardware=machine, slots=slots, resident=resident, gpu_resident=resident
        ).memory.device
        constraints = Constraints(
            device_bytes=budget,
            recompute=Recompute.NONE,
            micro_batches=1,
            rules=Rules(clipping=Clipping.NONE, threads=1),
        )
        chosen = search(profile, machine, constraints).recommended
        mine = (chosen.candidate.slots, chosen.candidate.resident)
        all_windows = windows(profile, machine, budget)
        if mine not in all_windows:
            all_windows.append(mine)
        # Twice, and the better one counts: a machine that is busy for a moment only ever makes a step longer.
        rounds = [{window: timed_ms(forward_s, *window, delay_s, steps) for window in all_windows} for _ in range(2)]
        actual = {window: min(one[window] for one in rounds) for window in all_windows}
        best = min(actual, key=lambda window: actual[window])
        rows.append(
            {
                "model": name,
                "windows": len(actual),
                "recommended": f"{mine[0]} slots, {len(mine[1])} resident",
                "predicted_ms": chosen.step_ns / 1e6,
                "its_ms": actual[mine],
                "best": f"{best[0]} slots, {len(best[1])} resident",
                "best_ms": actual[best],
                "worse_by_frac": actual[mine] / actual[best] - 1,
            }
        )
    table = Table(title="The recommended window against every window of the same budget, run for real")
    for column in rows[0]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    console = Console(width=130)
    console.print(table)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
