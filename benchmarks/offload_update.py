"""What an update costs the host, per parameter, and a norm of gradients.

Updates are torch's fused AdamW in fp32, and bf16 with fp32 masters by torch and in one pass, with and without clipping;
norms are held against a sum over the same bytes.

All sides live in one process and take turns, so that a machine that is busy for a while slows each of them; ratios are
medians of the ratios of neighbours. Updates are those of the engine: one `optimizer.step()` of layers in host memory,
until all are done. Processor time of all threads stands beside wall time: on a machine that others use it is the
steadier one.

    python benchmarks/offload_update.py
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from parts.results import keep, options
from rich.console import Console
from rich.table import Table
from torch import nn

import tightship_offload as offload
from tightship_offload.backends.cpu import CpuBackend
from tightship_offload.plan.host_limits import cores
from tightship_offload.runtime.engine import Engine
from tightship_offload.runtime.norms import total_norm

REFERENCE, BY_TORCH, ONE_PASS = "fp32, fused AdamW", "bf16 + masters, by torch", "bf16 + masters, one pass"
CLIPPED = (f"{BY_TORCH}, torch's clipping", f"{ONE_PASS}, ours")
AIM_UPDATE, AIM_NORM = 1.3, 0.8


class Layer(nn.Module):
    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.large, self.small = nn.Linear(parameters // 4096, 4096), nn.LayerNorm(4096)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.small(self.large(x))


class Side:
    """Two layers and their optimizer under a window, with gradients in place."""

    def __init__(self, parameters: int, *, masters: bool, by_torch: bool = False) -> None:
        self.model = nn.Sequential(nn.Sequential(*(Layer(parameters // 2) for _ in range(2))))
        self.model.to(torch.bfloat16 if masters else torch.float32)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        offload.apply(self.model, self.optimizer, layers="0.*", window=2, master=masters, backend=CpuBackend())
        self.engine: Engine = offload.engine_of(self.model)
        if by_torch:
            self.engine.updates._one_pass = "the benchmark asks for torch's"
        self.count = sum(p.numel() for p in self.model.parameters())
        for parameter in self.model.parameters():
            parameter.grad = (torch.randn(parameter.shape) * 1e-3).to(parameter.dtype)
        for _ in range(2):
            self.step()

    def step(self) -> None:
        self.optimizer.step()
        self.engine.drain()

    def clip_by_torch(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 1e-3)
        self.step()

    def clip(self) -> None:
        offload.clip_grad_norm_(self.model.parameters(), 1e-3)
        self.optimizer.step()
        with torch._C.DisableTorchFunctionSubclass():  # as zero_grad() drops gradients, which nobody has looked at
            kept = [(p, p.grad) for p in self.model.parameters()]
            for parameter, _ in kept:
                parameter.grad = None
        self.engine.drain()
        for parameter, gradient in kept:
            parameter.grad = gradient


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds: wall, and of the processor."""
    wall, busy = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - busy


def in_turns(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[tuple[float, float]]]:
    for call in calls.values():
        call()
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for number in range(rounds):
        names = list(calls)
        for name in names if number % 2 else reversed(names):
            spent[name].append(timed(calls[name]))
    return spent


def ratio(spent: Mapping[str, list[tuple[float, float]]], name: str, base: str, column: int) -> float:
    return statistics.median(a[column] / b[column] for a, b in zip(spent[name], spent[base], strict=True))


def updates(parameters: int, rounds: int, threads: int) -> list[dict[str, Any]]:
    torch.set_num_threads(threads)
    fp32 = Side(parameters, masters=False)
    by_torch = Side(parameters, masters=True, by_torch=True)
    one_pass = Side(parameters, masters=True)
    if one_pass.engine.updates.why_not_in_one_pass is not None:
        raise SystemExit(f"There is no one-pass update here: {one_pass.engine.updates.why_not_in_one_pass}")
    calls = {REFERENCE: fp32.step, BY_TORCH: by_torch.step, ONE_PASS: one_pass.step}
    spent = in_turns(calls | dict(zip(CLIPPED, (by_torch.clip_by_torch, one_pass.clip), strict=True)), rounds)
    for side in (fp32, by_torch, one_pass):
        side.engine.remove()
    return [
        {
            "case": name,
            "threads": threads,
            "wall_ns": statistics.median(wall for wall, _ in times) / fp32.count * 1e9,
            "processor_ns": statistics.median(busy for _, busy in times) / fp32.count * 1e9,
            "wall_ratio": ratio(spent, name, REFERENCE, 0),
            "processor_ratio": ratio(spent, name, REFERENCE, 1),
        }
        for name, times in spent.items()
    ]


def norms(numbers: int, rounds: int, threads: int) -> list[dict[str, Any]]:
    torch.set_num_threads(threads)
    gradients = {
        dtype: [torch.randn(size).to(dtype) for size in (numbers // 2, numbers // 4, numbers // 4)]
        for dtype in (torch.bfloat16, torch.float32)
    }
    rows = []
    for dtype, tensors in gradients.items():
        words = torch.cat([tensor.view(torch.uint8) for tensor in tensors]).view(torch.float32)
        exact = math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))
        found, theirs = total_norm(tensors), nn.utils.get_total_norm(tensors)
        assert found is not None
        calls: dict[str, Callable[[], object]] = {
            "sum": words.sum,
            "ours": lambda tensors=tensors: total_norm(tensors),
            "torch": lambda tensors=tensors: nn.utils.get_total_norm(tensors),
        }
        spent = in_turns(calls, rounds)
        rows.append(
            {
                "format": str(dtype).removeprefix("torch."),
                "threads": threads,
                **{
                    f"{name}_bytes_per_s": 4 * words.numel() / statistics.median(wall for wall, _ in times)
                    for name, times in spent.items()
                },
                "share_of_sum": ratio(spent, "sum", "ours", 0),
                "torch_share_of_sum": ratio(spent, "sum", "torch", 0),
                "error": abs(float(found) / exact - 1),
                "torch_error": abs(float(theirs) / exact - 1),
            }
        )
    return rows


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--params", type=int, default=24_000_000, help="of both layers of an update together")
    parser.add_argument("--numbers", type=int, default=64_000_000, help="of a norm")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    counts = sorted({1, cores()})
    result = {
        "parameters": args.params,
        "numbers": args.numbers,
        "updates": [row for threads in counts for row in updates(args.params, args.rounds, threads)],
        "norms": [row for threads in counts for row in norms(args.numbers, args.rounds, threads)],
        "torch": torch.__version__,
    }
    keep("offload_update", result, show, json_only=args.json_only)


def show(result: dict[str, Any]) -> None:
    """Print both tables."""
    console = Console()
    console.print(
        drawn(
            f"Update of {result['parameters'] / 1e6:.0f} M parameters, ns per parameter",
            ("case", "threads", "wall", "processor", "wall, of fp32", "processor, of fp32"),
            (
                (
                    row["case"],
                    str(row["threads"]),
                    *(f"{row[key]:.2f}" for key in ("wall_ns", "processor_ns", "wall_ratio", "processor_ratio")),
                )
                for row in result["updates"]
            ),
        )
    )
    console.print(
        drawn(
            f"Norm of {result['numbers'] / 1e6:.0f} M gradients, GB/s",
            ("format", "threads", "sum", "ours", "torch's", "ours, of the sum", "error", "torch's error"),
            (
                (
                    row["format"],
                    str(row["threads"]),
                    *(f"{row[f'{name}_bytes_per_s'] / 1e9:.1f}" for name in ("sum", "ours", "torch")),
                    f"{row['share_of_sum']:.2f}",
                    f"{row['error']:.0e}",
                    f"{row['torch_error']:.0e}",
                )
                for row in result["norms"]
            ),
        )
    )
    console.print(f"Aims: one pass at most {AIM_UPDATE} of fp32; norms at least {AIM_NORM} of the sum.")


def drawn(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table whose first column is words and whose others are numbers."""
    table = Table(title=title)
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place else "left")
    for row in rows:
        table.add_row(*row)
    return table


if __name__ == "__main__":
    main()
