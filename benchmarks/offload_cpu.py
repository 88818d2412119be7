"""What the offload engine costs on a CPU: its overhead where nothing moves or everything does, and fused updates.

Overhead: the same training step without the engine and with it, in turns, in one process; the median of the ratios of
neighbours, so that a machine that is busy for a while slows both. `resident` is every layer resident (the engine has
nothing to move); `window` moves every layer through slots in host memory, which costs real copies. Processor time of
all threads is given beside wall time: on a machine that others use it is the steadier one.

Updates: bytes that torch's fused AdamW reads and writes per second on the engine's flat slabs, against an in-place
`add_` over the same memory (28 bytes per parameter: weight, gradient and two moments read, all but the gradient
written).
"""

from __future__ import annotations

import argparse
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
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

import tightship_offload as offload

OUT = Path(__file__).parent / "out" / "offload_cpu.json"


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(x)))


def make(layers: int, width: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.Sequential(*(Block(width) for _ in range(layers))))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> Callable[[], None]:
    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds(call: Callable[[], None], times: int = 1) -> float:
    begun = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begun) / times


def overhead(layers: int, width: int, tokens: int, pairs: int) -> list[dict[str, Any]]:
    batch = torch.randn(2, tokens // 2, width)
    plain = step_of(*make(layers, width), batch)
    found = []
    for name, options in (
        ("resident", {"window": 2, "resident": range(layers)}),
        ("window 2", {"window": 2}),
        ("window 4", {"window": 4}),
    ):
        model, optimizer = make(layers, width)
        offload.apply(model, optimizer, **options)
        engine = offload.engine_of(model)
        ours = step_of(model, optimizer, batch)
        for call in (plain, ours):
            seconds(call, 3)
        ratios, busy, steps = [], [], []
        for number in range(pairs):
            first, second = (plain, ours) if number % 2 else (ours, plain)
            times = []
            for call in (first, second):
                begun = time.process_time()
                times.append((seconds(call, 2), (time.process_time() - begun) / 2))
            mine, theirs = reversed(times) if number % 2 else times
            ratios.append(mine[0] / theirs[0] - 1)
            busy.append(mine[1] / theirs[1] - 1)
            steps.append(theirs[0])
        quarter = statistics.quantiles(ratios, n=4)
        stats = engine.last.as_dict() if engine.last else {}
        found.append(
            {
                "case": name,
                "step_ms": statistics.median(steps) * 1e3,
                "overhead_frac": statistics.median(ratios),
                "overhead_low_frac": quarter[0],
                "overhead_high_frac": quarter[2],
                "processor_overhead_frac": statistics.median(busy),
                "last_step": stats,
            }
        )
        engine.remove()
    return found


def updates(params: int, repeats: int) -> dict[str, Any]:
    """Of one layer of the engine: its slab is filled by one large and some small tensors."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.large = nn.Linear(params // 4096, 4096)
            self.small = nn.LayerNorm(4096)

        def forward(self, x: Tensor) -> Tensor:
            return self.small(self.large(x))

    model = nn.Sequential(nn.Sequential(Layer(), Layer()))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    offload.apply(model, optimizer, layers="0.*", window=2)
    engine = offload.engine_of(model)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) * 1e-3
    count = sum(p.numel() for p in model.parameters())
    spent, inplace = [], []
    memory = torch.zeros(4 * count)  # as much as weights, gradients and moments together
    for number in range(repeats):
        optimizer.step()
        engine.drain()
        inplace.append(seconds(lambda: memory.add_(1.0)))
        if number:  # the first one makes the moments
            assert engine.last is not None
            spent.append(engine.updates.spent_ns / 1e9)
    update, add = statistics.median(spent), statistics.median(inplace)
    engine.remove()
    update_rate, add_rate = 28 * count / update, 8 * memory.numel() / add
    return {
        "params": count,
        "threads": torch.get_num_threads(),
        "update_params_per_s": count / update,
        "update_bytes_per_s": update_rate,
        "inplace_bytes_per_s": add_rate,
        "share_frac": update_rate / add_rate,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=1024, help="per step")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--params", type=int, default=20_000_000, help="per layer of the update benchmark")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    steps = overhead(args.layers, args.width, args.tokens, args.pairs)
    rate = updates(args.params, 9)
    table = Table(title=f"Engine overhead, {args.threads} thread(s)")
    for column in ("case", "plain step", "overhead", "half of the pairs lie in", "processor time"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for row in steps:
        table.add_row(
            row["case"],
            f"{row['step_ms']:.0f} ms",
            f"{row['overhead_frac']:+.1%}",
            f"{row['overhead_low_frac']:+.1%} to {row['overhead_high_frac']:+.1%}",
            f"{row['processor_overhead_frac']:+.1%}",
        )
    console = Console()
    console.print(table)
    console.print(
        f"Fused updates: {rate['update_params_per_s'] / 1e6:.0f} M parameters/s, "
        f"{rate['update_bytes_per_s'] / 1e9:.1f} GB/s; "
        f"in-place add {rate['inplace_bytes_per_s'] / 1e9:.1f} GB/s: {rate['share_frac']:.0%}"
    )
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps({"overhead": steps, "updates": rate}, indent=1) + "\n")


if __name__ == "__main__":
    main()
