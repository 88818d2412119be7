"""One training under every way of keeping its state in host memory: speed, memory, and the largest model under a cap.

    python benchmarks/gpu/offload_h200.py          # on a GPU: about 3 B parameters; the largest model under 8 GiB
    python benchmarks/gpu/offload_h200.py --cpu    # a small version anywhere, to see that the program is in order

No offload, tightship, DeepSpeed ZeRO-3 offload, FSDP2's CPUOffloadPolicy and torchao's CPUOffloadOptimizer train the
same GPT on the same batches with the same recipe: bf16 weights, AdamW, every layer recomputed, the loss in chunks, no
clipping (torchao's cannot clip). Each runs in its own process: 3 steps to warm up, then 8 that are timed. Who
keeps fp32 masters is in the table: it is part of what each offers. A peer that is not installed is named with the
command that installs it. tightship plans from the steps that the case without offload measures, and where that does
not fit from counted work; its plan's prediction stands beside what was measured.

The table goes to the screen, everything to `benchmarks/out/offload_h200.json`, with the GPU's name.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml
from offload_cases import CASES, NEEDS, Shape, run_case
from rich.console import Console
from rich.table import Table

from tightship_analyzers.offload_planner.rates import measure_rates
from tightship_platform.units import format_bytes, parse_bytes

OUT = Path(__file__).parents[1] / "out" / "offload_h200.json"
GPU_SHAPE = Shape(layers=15, width=4096, context=2048, tokens=0, vocabulary=32_000, dtype="bfloat16")
CPU_SHAPE = Shape(layers=4, width=128, context=128, tokens=0, vocabulary=512, dtype="float32")
GPU_TOKENS, CPU_TOKENS = (16_384, 32_768), (512,)
CASE_S = 1800
MOST_LAYERS = {"cuda": 64, "cpu": 6}


def measured_apart(name: str, shape: Shape, folder: Path, cap: int | None = None) -> dict[str, Any]:
    """One case in its own process; what went wrong is a line."""
    asked = {"case": name, "shape": shape.__dict__, "cap_bytes": cap, "folder": str(folder)}
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--child", json.dumps(asked)],
            capture_output=True,
            text=True,
            timeout=CASE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"case": name, "failed": f"no end after {CASE_S} s"}
    if done.returncode == 0:
        return {"case": name} | json.loads(done.stdout.splitlines()[-1])
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return {"case": name, "failed": last[:300]}


def compared(shape: Shape, folder: Path) -> list[dict[str, Any]]:
    """Every case, the one without offload first: the plan is made from its steps."""
    rows = [measured_apart(name, shape, folder) for name in CASES]
    alone = rows[0].get("step_ms")
    for row in rows:
        row["share_frac"] = alone / row["step_ms"] if alone and "step_ms" in row else None
    return rows


def largest(shape: Shape, cap: int, most: int, folder: Path) -> dict[str, Any]:
    """The most layers whose plan holds within the cap and whose steps then run, found by halving."""
    fits, best, refusal = 2, None, ""
    too_many = most + 1
    while too_many - fits > 1 or best is None:
        layers = fits if best is None else (fits + too_many) // 2
        row = measured_apart("tightship", shape.of(layers=layers), folder, cap)
        if "step_ms" in row:
            fits, best = layers, row
        elif best is None:
            return {"cap_bytes": cap, "failed": row.get("failed", row.get("missing"))}
        else:
            too_many, refusal = layers, row["failed"]
    return {"cap_bytes": cap, "layers": fits, "bound_by": refusal or f"no more than {most} layers were tried"} | best


def print_rows(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    """One line for each case; of one that did not run, why."""
    ran = [row for row in rows if "step_ms" in row]
    table = Table(title=title)
    for column in ("case", "step", "tokens/s", "of no offload", "device", "host", "new blocks", "masters"):
        table.add_column(column, justify="left" if column in ("case", "masters") else "right", no_wrap=True)
    for row in ran:
        table.add_row(
            row["case"],
            f"{row['step_ms']:.0f} ms",
            f"{row['tokens_per_s']:,.0f}",
            "–" if row["share_frac"] is None else f"{row['share_frac']:.2f}",
            format_bytes(row["device_bytes"]),
            format_bytes(row["host_bytes"]),
            "–" if row["new_allocations"] is None else str(row["new_allocations"]),
            row["masters"],
        )
    console.print(table)
    for row in rows:
        if row not in ran:
            console.print(f"{row['case']}: {row.get('missing') or row['failed']}")
    for row in ran:
        if "predicted" in row:
            window, predicted = row["window"], row["predicted"]
            memory = " and ".join(f"{format_bytes(predicted[f'{at}_bytes'])} of {at}" for at in ("device", "host"))
            console.print(
                f"{row['case']}: {window['slots']} slots, {window['resident']} resident; predicted from "
                f"{predicted['from']} costs: {predicted['step_ms']:.0f} ms, {memory} memory, "
                f"bound by {predicted['bottleneck']}"
            )


def losses_agree(rows: list[dict[str, Any]]) -> str:
    """Whether tightship's losses are those without offload, in words."""
    by_case = {row["case"]: row.get("losses") for row in rows}
    alone, ours = by_case["no offload"], by_case["tightship"]
    if not alone or not ours:
        return "One of the two did not run: the losses with and without tightship cannot be compared."
    if alone == ours:
        return "The losses with tightship are those without offload, bit for bit."
    furthest = max(abs(a - b) / abs(a) for a, b in zip(alone, ours, strict=True))
    return f"The losses with tightship differ from those without offload by up to {furthest:.2e} of their value."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="a small model on the CPU; of no use as a figure")
    parser.add_argument("--layers", type=int, help="instead of those of about 3 B parameters")
    parser.add_argument("--width", type=int)
    parser.add_argument("--tokens", type=int, nargs="+", help="per step")
    parser.add_argument("--cap", type=parse_bytes, help="device memory for the largest model; 8GiB")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        sys.stdout.write(json.dumps(run_case(**json.loads(args.child))) + "\n")
        return
    if not args.cpu and not torch.cuda.is_available():
        parser.error("there is no GPU here; --cpu runs a small version without one")
    device = "cpu" if args.cpu else "cuda"
    if args.cpu:  # for the children
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    base, tokens = (CPU_SHAPE, CPU_TOKENS) if args.cpu else (GPU_SHAPE, GPU_TOKENS)
    base = base.of(layers=args.layers or base.layers, width=args.width or base.width)
    cap = args.cap or (24 * 2**20 if args.cpu else 8 * 2**30)
    name = "none: the CPU plays the device" if args.cpu else torch.cuda.get_device_name()
    console, results = Console(width=max(110, Console().width)), []
    hardware = measure_rates()
    with tempfile.TemporaryDirectory(prefix="tightship-offload-") as made:
        folder = Path(made)
        (folder / "hardware.yaml").write_text(yaml.safe_dump(hardware.as_mapping()))
        for count in args.tokens or tokens:
            shape = base.of(tokens=math.ceil(count / base.context) * base.context)
            rows = compared(shape, folder)
            title = f"{shape.parameters / 1e6:,.1f} M parameters, {shape.tokens:,} tokens a step; GPU: {name}"
            print_rows(console, title, rows)
            console.print(losses_agree(rows))
            results.append({"shape": shape.__dict__, "parameters": shape.parameters, "rows": rows})
        most = largest(base.of(tokens=base.context), cap, MOST_LAYERS[device], folder)
    if "layers" in most:
        parameters = base.of(layers=most["layers"]).parameters
        most["parameters"] = parameters
        console.print(
            f"Largest model with full AdamW under {format_bytes(cap)}: {parameters / 1e6:,.1f} M parameters, "
            f"{most['host_bytes'] / parameters:.1f} bytes of host memory for each; the next size: {most['bound_by']}"
        )
    else:
        console.print(f"Largest model under {format_bytes(cap)}: none ({most['failed']})")
    document = {
        "gpu": None if args.cpu else name,
        "torch": torch.__version__,
        "hardware": hardware.as_mapping(),
        "not_installed": {row["case"]: NEEDS[row["case"]] for row in results[0]["rows"] if "missing" in row},
        "compared": results,
        "largest": most,
    }
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
