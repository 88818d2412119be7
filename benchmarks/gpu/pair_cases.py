"""The cases of pairs.py: for each rule the same work with its defect and without, as a step to be repeated."""

from __future__ import annotations

import gc
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.utils.data import DataLoader, Dataset

Step = Callable[[], None]
Make = Callable[[str], Step]
"""Device → a step."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One rule's defect and its fix."""

    rule: str
    before: Make
    after: Make
    anywhere: bool = False
    """The defect costs something on a CPU, too."""


class Compressed(Dataset[Tensor]):
    """Items that take a while to unpack."""

    def __init__(self, width: int, floats: int) -> None:
        self.items = [zlib.compress(torch.rand(floats).numpy().tobytes(), 1) for _ in range(16)]
        self.width = width

    def __len__(self) -> int:
        return 10**7

    def __getitem__(self, index: int) -> Tensor:
        return torch.frombuffer(bytearray(zlib.decompress(self.items[index % 16])), dtype=torch.float32)[: self.width]


def network(device: str, width: int = 1024, layers: int = 4, **kind: Any) -> nn.Sequential:
    """Linear layers, one after the other."""
    return nn.Sequential(*(nn.Linear(width, width, **kind) for _ in range(layers))).to(device)


def training(
    device: str,
    model: nn.Module,
    batches: Iterator[Tensor],
    *,
    optimizer: dict[str, Any] | None = None,
    after_backward: Callable[[Tensor], object] = lambda _: None,
    move: Callable[[Tensor], Tensor] | None = None,
    set_to_none: bool = True,
) -> Step:
    """An ordinary step, with what a pair differs in."""
    chosen = torch.optim.AdamW(model.parameters(), **(optimizer or {"fused": True}))
    moved = move or (lambda batch: batch.to(device))

    def step() -> None:
        loss = model(moved(next(batches))).float().square().mean()
        chosen.zero_grad(set_to_none=set_to_none)
        loss.backward()
        after_backward(loss)
        chosen.step()

    return step


def forever(batch: Tensor) -> Iterator[Tensor]:
    while True:
        yield batch


def on(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> Iterator[Tensor]:
    return forever(torch.rand(shape, device=device, dtype=dtype))


def plain(device: str, **more: Any) -> Step:
    """A healthy training that the device is busy with."""
    return training(device, network(device), on(device, 256, 1024), **more)


def loaded(workers: int) -> Make:
    def make(device: str) -> Step:
        kept: dict[str, Any] = {"num_workers": workers, "persistent_workers": True} if workers else {}
        loader = DataLoader(Compressed(1024, 200_000), batch_size=32, pin_memory=device != "cpu", **kept)
        return training(device, network(device), iter(loader))

    return make


def copied(*, pinned: bool, non_blocking: bool) -> Make:
    def make(device: str) -> Step:
        batch = torch.rand(16_384, 1024)
        batch = batch.pin_memory() if pinned else batch
        move = lambda given: given.to(device, non_blocking=non_blocking)  # noqa: E731
        return training(device, network(device, layers=2), forever(batch), move=move)

    return make


def blockwise(
    between: Callable[[Tensor], Tensor], *, layers: int = 8, rows: int = 512, dtype: torch.dtype = torch.float32
) -> Make:
    """Layers with something between them; forward only."""

    def make(device: str) -> Step:
        model, batches = network(device, layers=layers, dtype=dtype), on(device, rows, 1024, dtype=dtype)

        def step() -> None:
            x = next(batches)
            with torch.no_grad():
                for layer in model:
                    x = between(layer(x))

        return step

    return make


def halves(between: Callable[[Tensor], Tensor]) -> Make:
    return blockwise(between, layers=4, rows=16_384, dtype=torch.bfloat16)


def read(x: Tensor) -> Tensor:
    float(x.abs().max().item())
    return x


def kept(x: Tensor) -> Tensor:
    x.abs().max()
    return x


def synchronized(x: Tensor) -> Tensor:
    torch.cuda.synchronize()
    return x


def through_host(x: Tensor) -> Tensor:
    return torch.from_numpy(x.cpu().numpy().clip(-1, 1)).to(x.device)


def filled(where: Callable[[Tensor], Tensor]) -> Make:
    return blockwise(lambda x: x + where(x), rows=4096)


def small(*, graphed: bool) -> Make:
    def make(device: str) -> Step:
        model, x = network(device, 64, 64), torch.rand(16, 64, device=device)

        def eager() -> None:
            with torch.no_grad():
                model(x)

        if not graphed:
            return eager
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            eager()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            eager()
        return graph.replay

    return make


def swarm(*, fused: bool) -> Make:
    def chain(x: Tensor) -> Tensor:
        for _ in range(10):
            x = torch.sigmoid(x * 1.01 + 0.1) - x
        return x

    def make(device: str) -> Step:
        # Here, not before: who only reads what there is would import the compiler, too.
        return blockwise(torch.compile(chain) if fused else chain, rows=128)(device)

    return make


def products(*, tf32: bool) -> Make:
    def make(device: str) -> Step:
        inner = training(device, network(device, 4096), on(device, 4096, 4096))

        def step() -> None:
            torch.backends.cuda.matmul.allow_tf32 = tf32
            inner()
            torch.backends.cuda.matmul.allow_tf32 = False

        return step

    return make


def half(width: int) -> Make:
    def make(device: str) -> Step:
        model = network(device, width, dtype=torch.bfloat16)
        return training(device, model, on(device, 4096, width, dtype=torch.bfloat16))

    return make


def attention(how: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Make:
    def make(device: str) -> Step:
        q, k, v = (torch.rand(8, 16, 1024, 64, device=device, dtype=torch.bfloat16) for _ in range(3))

        def step() -> None:
            with torch.no_grad():
                for _ in range(4):
                    how(q, k, v)

        return step

    return make


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) * 0.125, -1) @ v


def images(*, bias: bool = False, channels_last: bool = True) -> Make:
    def make(device: str) -> Step:
        layers = [
            part
            for _ in range(6)
            for part in (nn.Conv2d(64, 64, 3, padding=1, bias=bias), nn.BatchNorm2d(64), nn.ReLU())
        ]
        layout = torch.channels_last if channels_last else torch.contiguous_format
        model = nn.Sequential(*layers).to(device, torch.bfloat16, memory_format=layout)
        batch = torch.rand(32, 64, 128, 128, device=device, dtype=torch.bfloat16).to(memory_format=layout)
        return training(device, model, forever(batch))

    return make


def saved(*, every_step: bool) -> Make:
    def make(device: str) -> Step:
        model = network(device)
        file = Path(tempfile.gettempdir()) / f"pair-{os.getpid()}.pt"

        def save(_: Tensor) -> None:
            if every_step:
                torch.save(model.state_dict(), file)
                file.unlink()

        return training(device, model, on(device, 256, 1024), after_backward=save)

    return make


def rows_of(*, loop: bool) -> Make:
    def make(device: str) -> Step:
        weight = torch.rand(64, 256, device=device, requires_grad=True)

        def model(x: Tensor) -> Tensor:
            return torch.stack([x[i] * weight[i] for i in range(64)]) if loop else x * weight

        x = torch.rand(64, 256, device=device)

        def step() -> None:
            model(x).square().mean().backward()
            weight.grad = None

        return step

    return make


PAIRS = (
    Pair(rule="starved-input", before=loaded(0), after=loaded(4), anywhere=True),
    Pair(rule="synchronous-scalar-read", before=blockwise(read), after=blockwise(kept)),
    Pair(
        rule="data-dependent-shape",
        before=blockwise(lambda x: x + x[x > 0].sum()),
        after=blockwise(lambda x: x + torch.where(x > 0, x, 0).sum()),
    ),
    Pair(rule="explicit-synchronization", before=blockwise(synchronized), after=blockwise(lambda x: x)),
    Pair(rule="synchronous-checkpoint", before=saved(every_step=True), after=saved(every_step=False), anywhere=True),
    Pair(
        rule="cache-flush",
        before=lambda device: plain(device, after_backward=lambda _: torch.cuda.empty_cache()),
        after=plain,
    ),
    Pair(
        rule="garbage-collection",
        before=lambda device: plain(device, after_backward=lambda _: gc.collect()),
        after=plain,
        anywhere=True,
    ),
    Pair(rule="loop-indexing", before=rows_of(loop=True), after=rows_of(loop=False), anywhere=True),
    Pair(
        rule="single-tensor-optimizer",
        before=lambda device: training(
            device, network(device, 128, 32), on(device, 64, 128), optimizer={"foreach": False}
        ),
        after=lambda device: training(device, network(device, 128, 32), on(device, 64, 128)),
        anywhere=True,
    ),
    Pair(
        rule="pageable-copy",
        before=copied(pinned=False, non_blocking=False),
        after=copied(pinned=True, non_blocking=True),
    ),
    Pair(
        rule="synchronous-copy",
        before=copied(pinned=True, non_blocking=False),
        after=copied(pinned=True, non_blocking=True),
    ),
    Pair(
        rule="fill-then-copy",
        before=filled(lambda x: torch.zeros(x.shape).to(x.device)),
        after=filled(lambda x: torch.zeros(x.shape, device=x.device)),
    ),
    Pair(rule="device-round-trip", before=blockwise(through_host), after=blockwise(lambda x: x.clip(-1, 1))),
    Pair(
        rule="zero-grad-memset",
        before=lambda device: plain(device, set_to_none=False),
        after=plain,
    ),
    Pair(rule="dtype-ping-pong", before=halves(lambda x: x.float().bfloat16()), after=halves(lambda x: x)),
    Pair(rule="layout-ping-pong", before=images(channels_last=False), after=images()),
    Pair(rule="launch-bound", before=small(graphed=False), after=small(graphed=True)),
    Pair(rule="unfused-elementwise", before=swarm(fused=False), after=swarm(fused=True)),
    Pair(rule="fp32-gemm", before=products(tf32=False), after=products(tf32=True)),
    Pair(rule="unaligned-half-dims", before=half(4095), after=half(4096)),
    Pair(rule="unfused-attention", before=attention(by_hand), after=attention(F.scaled_dot_product_attention)),
    Pair(rule="conv-bias-before-batch-norm", before=images(bias=True), after=images()),
)
"""In the order of the catalogue."""
