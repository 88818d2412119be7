"""How a layer's weights get onto the device: three ways, side by side, each with the whole engine around it.

`shared`: parameters are views of the slot that the layer happens to be in, and saved tensors are looked up again (the
engine as it was at `BEFORE`, taken from this repository's history). `resized`: each layer has its own storage on the
device, resized 0 <-> n, as FSDP2 does it. `moved`: as `resized`, but a slot's block moves from storage to storage. The
sides are processes that live at once and take turns, one step each; figures are medians of the ratios of neighbours.

Faults are loops that a window must not change: `wrong` numbers, an `error`, or `right`.

    python benchmarks/offload_primitive.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from io import BytesIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OUT = Path(__file__).parent / "out" / "offload_primitive.json"
BEFORE = "fab7c94"
SIDES = ("shared", "resized", "moved")
FILES = ("compat", "runtime/layer", "runtime/saved_tensors", "runtime/slots", "runtime/window")
SLOTS = 2


# ---- in a side's process ---------------------------------------------------------------------------------------------


def worker(side: str) -> None:
    """Answers each line of input with one line of JSON."""
    import torch

    torch.set_num_threads(1)
    if side == "resized":
        from tightship_offload import compat

        compat.HAS_SWAP = False
    known: dict[str, Any] = {}
    for line in sys.stdin:
        command, *arguments = line.split()
        found: Any = None
        match command:
            case "make":
                known = make(int(arguments[0]), arguments[1])
            case "step":
                found = step(known)
            case "faults":
                found = {name: fault(name) for name in FAULTS}
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


def make(width: int, mode: str) -> dict[str, Any]:
    """A model of six layers of 8 width² parameters: `plain`, `resident` or moving."""
    import torch
    from torch import nn

    import tightship_offload as offload

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(torch.relu(self.up(x)))

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.Sequential(*(Block() for _ in range(6))))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    engine = None
    if mode != "plain":
        offload.apply(model, optimizer, window=SLOTS, layers="1.*", resident=range(6) if mode == "resident" else ())
        engine = offload.engine_of(model)
    found = {"model": model, "optimizer": optimizer, "engine": engine, "batch": torch.randn(256, width)}
    for _ in range(2):
        step(found)
    return found


def step(known: dict[str, Any]) -> dict[str, Any]:
    """One step: what it took, and the device memory that layers had at most as one of them computed."""
    engine, most = known["engine"], 0
    faults = _page_faults()
    begun, busy = time.perf_counter(), time.process_time()
    known["model"](known["batch"]).square().mean().backward()
    known["optimizer"].step()
    known["optimizer"].zero_grad()
    if engine is not None:
        engine.drain()
    took, busy = time.perf_counter() - begun, time.process_time() - busy
    if engine is not None and engine.layers:
        most = _device_bytes(engine) / engine.layers[0].size_bytes
    return {"wall": took, "processor": busy, "page_faults": _page_faults() - faults, "layers_of_memory": most}


def _device_bytes(engine: Any) -> int:
    if not hasattr(engine.layers[0], "on_device"):
        return int(engine.pool.size_bytes)
    tensors = [slot._has_block for slot in engine.pool.slots] + [layer.on_device for layer in engine.layers]
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())


def _page_faults() -> int:
    return int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[7])


# ---- faults ----------------------------------------------------------------------------------------------------------


def fault(name: str) -> str:
    plain = FAULTS[name](0)
    try:
        return "right" if FAULTS[name](3) == plain else "wrong"
    except Exception as error:
        return f"error: {type(error).__name__}"


def _kept_on_ctx(window: int) -> list[float]:
    import random

    import torch
    from torch import nn

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any) -> Any:
            ctx.weight = weight.detach()
            ctx.save_for_backward(x)
            return x @ weight.t()

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradients[0] @ ctx.weight, gradients[0].t() @ ctx.saved_tensors[0]

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(32, 32) / 6)

        def forward(self, x: Any) -> Any:
            return x + torch.relu(Keeps.apply(x, self.weight))

    chance = random.Random(1)

    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(8))

        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                if chance.random() > 0.3:
                    x = block(x)
            return x

    return _losses(Dropping, window, 8, lambda model, number: None)


def _inference_mode(window: int) -> list[float]:
    import torch
    from torch import nn

    def evaluate(model: Any, number: int) -> None:
        if number in (0, 3):
            with torch.inference_mode():
                model(torch.ones(2, 32))

    return _losses(lambda: nn.Sequential(*(nn.Linear(32, 32) for _ in range(7))), window, 8, evaluate)


def _losses(kind: Any, window: int, steps: int, between: Any) -> list[float]:
    import torch

    import tightship_offload as offload

    torch.manual_seed(0)
    model = kind()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    if window:
        offload.apply(model, optimizer, window=window)
    found = []
    for number in range(steps):
        loss = model(torch.randn(16, 32, generator=torch.Generator().manual_seed(number))).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
        between(model, number)
    return found


FAULTS = {"weight kept on ctx, layers dropped": _kept_on_ctx, "inference_mode between steps": _inference_mode}


# ---- side by side ----------------------------------------------------------------------------------------------------


class Side:
    """One process."""

    def __init__(self, name: str, packages: Path) -> None:
        env = os.environ | {"PYTHONPATH": str(packages), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", name],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, command: str) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def compare(sides: dict[str, Side], base: str, rounds: int) -> dict[str, Any]:
    """Medians over the rounds; times as the ratio to `base`."""
    seen: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            seen[name].append(side("step"))
    return {
        name: {
            "wall": statistics.median(a["wall"] / b["wall"] for a, b in zip(steps, seen[base], strict=True)),
            "processor": statistics.median(
                a["processor"] / b["processor"] for a, b in zip(steps, seen[base], strict=True)
            ),
            "page_faults": statistics.median(one["page_faults"] for one in steps),
            "layers_of_memory": max(one["layers_of_memory"] for one in steps),
        }
        for name, steps in seen.items()
    }


def lines(packages: Path) -> int:
    """Of code and comments in the files that know how a layer gets onto the device."""
    paths = [packages / "tightship_offload" / f"{name}.py" for name in FILES]
    return sum(bool(line.strip()) for path in paths if path.exists() for line in path.read_text().splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--widths", type=int, nargs="*", default=[256, 512, 1280])
    args = parser.parse_args()
    if args.worker:
        worker(args.worker)
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", BEFORE, "offload"], cwd=ROOT, capture_output=True, check=True
        ).stdout
        with tarfile.open(fileobj=BytesIO(archive)) as tree:
            tree.extractall(folder, filter="data")
        packages = {name: (Path(folder) if name == "shared" else ROOT) / "offload" for name in SIDES}
        sides = {name: Side(name, packages[name]) for name in SIDES}
        plain = Side("plain", ROOT / "offload")
        try:
            found: dict[str, Any] = {"lines": {name: lines(packages[name]) for name in SIDES}}
            found["faults"] = {name: side("faults") for name, side in sides.items()}
            for width in args.widths:
                for side in sides.values():
                    side(f"make {width} moving")
                found[f"window of {SLOTS}, layers of {32 * width**2 / 2**20:.0f} MiB"] = compare(
                    sides, "shared", args.rounds
                )
            everybody = {"plain": plain, **sides}
            for name, side in everybody.items():
                side(f"make {args.widths[0]} {'plain' if name == 'plain' else 'resident'}")
            found["all resident"] = compare(everybody, "plain", 3 * args.rounds)
        finally:
            for side in (*sides.values(), plain):
                side.close()
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
