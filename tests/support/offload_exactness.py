"""The same training with and without a window, and whether every number came out the same.

The product of what may differ is large; `cases` draws from it by a seed, `all_cases` is the whole.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from offload_machines import machine
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.utils.checkpoint import checkpoint

from tightship_offload.backends.race_detector import Ledger
from tightship_offload.runtime.apply import apply
from tightship_offload.runtime.engine import Engine, engine_of

LAYERS = 5
WIDTH = 16
VOCABULARY = 11
STEPS = 50


@dataclass(frozen=True, kw_only=True)
class Training:
    """What one training does, with or without a window."""

    clipping: bool = False
    accumulation: int = 1
    checkpointing: str = "off"
    tied: bool = False
    frozen: bool = False
    optimizer: str = "adamw"
    precision: str = "fp32"

    def __str__(self) -> str:
        parts = (
            "clip" * self.clipping, f"acc{self.accumulation}", self.checkpointing, "tied" * self.tied,
            "frozen" * self.frozen, self.optimizer, self.precision,
        )  # fmt: skip
        return "-".join(part for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training under a window."""

    training: Training
    window: int
    resident: tuple[int, ...] = ()
    seed: int = 0
    """Of the delays."""

    def __str__(self) -> str:
        return f"w{self.window}-r{''.join(map(str, self.resident))}-{self.training}-seed{self.seed}"


PRODUCT: dict[str, tuple[Any, ...]] = {
    "window": tuple(range(2, LAYERS + 1)),
    "resident": ((), (0,), (1, 3)),
    "clipping": (False, True),
    "accumulation": (1, 4),
    "checkpointing": ("off", "reentrant", "non-reentrant"),
    "tied": (False, True),
    "frozen": (False, True),
    "optimizer": ("adamw", "sgd"),
    "precision": ("fp32", "bf16", "autocast"),
}


def all_cases() -> Iterator[Case]:
    """Every case of the product, each with its own seed below 1,000."""
    for number, values in enumerate(itertools.product(*PRODUCT.values())):
        yield _case(dict(zip(PRODUCT, values, strict=True)), number % 1000)


def drawn_cases(seed: int, count: int) -> list[Case]:
    """A random slice of the product, in which the first ones take turns in each dimension."""
    rng = random.Random(seed)
    columns = {name: rng.sample(values, len(values)) for name, values in PRODUCT.items()}
    return [
        _case(
            {name: values[n] if n < len(values) else rng.choice(values) for name, values in columns.items()},
            rng.randrange(1000),
        )
        for n in range(count)
    ]


def _case(values: dict[str, Any], seed: int) -> Case:
    window, resident = values.pop("window"), values.pop("resident")
    return Case(training=Training(**values), window=window, resident=resident, seed=seed)


class Block(nn.Module):
    """Attention and an MLP, with what blocks of real models have: norms, biases, gains, dropout, something unused."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Parameter(torch.randn(width, 2 * width) * 0.1)
        self.gain = nn.Parameter(torch.ones(width))
        self.unused = nn.Parameter(torch.ones(3))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        x = x + self.drop(attended) * self.gain
        return x + F.gelu(self.up(x)) @ self.down.t()  # autograd saves the transposed view, not the parameter


class Model(nn.Module):
    """A small GPT."""

    def __init__(self, *, tied: bool = False, checkpointing: str = "off", layers: int = LAYERS) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.checkpointing = checkpointing

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            if self.checkpointing == "off" or not torch.is_grad_enabled():
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.checkpointing == "reentrant")
        return self.head(x)


def make(training: Training) -> tuple[Model, torch.optim.Optimizer]:
    """The model and its optimizer, always with the same first values."""
    torch.manual_seed(7)
    model = Model(tied=training.tied, checkpointing=training.checkpointing)
    if training.precision == "bf16":
        model.bfloat16()
    if training.frozen:
        model.blocks[1].requires_grad_(False)
        model.blocks[3].norm.requires_grad_(False)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    if training.optimizer == "adamw":
        return model, torch.optim.AdamW(groups, lr=1e-2, fused=True)
    return model, torch.optim.SGD(groups, lr=1e-2, momentum=0.9, nesterov=True)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, training: Training, steps: int = STEPS) -> list[Tensor]:
    """The user's loop; it knows of nothing. The loss of each micro-batch."""
    data = torch.Generator().manual_seed(3)
    torch.manual_seed(11)  # of the dropout
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
    losses: list[Tensor] = []
    for _ in range(steps):
        for _ in range(training.accumulation):
            tokens = torch.randint(0, VOCABULARY, (2, 7), generator=data)
            around: AbstractContextManager[Any] = nullcontext()
            if training.precision == "autocast":
                around = torch.autocast("cpu", dtype=torch.bfloat16)
            with around:
                logits = model(tokens[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
            (loss / training.accumulation).backward()
            losses.append(loss.detach())
        if training.clipping:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return losses


@lru_cache(maxsize=64)
def reference(training: Training, steps: int = STEPS) -> dict[str, Tensor]:
    """Everything that the training without a window ends with."""
    model, optimizer = make(training)
    return everything(model, optimizer, train(model, optimizer, training, steps))


def windowed(
    case: Case, steps: int = STEPS, *, prefetch: int | None = None, kind: str | None = None, **backend: Any
) -> tuple[dict[str, Tensor], Engine, Ledger]:
    """Everything that it ends with under the window, watched for races.

    Abandoned slots are full of NaN, copies and updates are late at random, and slots are taken at random, too: the
    engine's own choice brings a layer back to where it was more often than not, which would hide a stale view.

    :param prefetch: None: drawn by the seed, too.
    :param kind: of machine; None: what the running test is on.
    """
    ledger = Ledger()
    model, optimizer = make(case.training)
    with machine(kind, **{"ledger": ledger, "seed": case.seed} | backend) as on:
        chance = random.Random(case.seed)
        ahead = chance.randrange(case.window) if prefetch is None else prefetch
        apply(model, optimizer, window=case.window, resident=case.resident, prefetch=ahead, backend=on)
        engine_of(model).pool.choose = chance.choice
        losses = train(model, optimizer, case.training, steps)
        return everything(model, optimizer, losses), engine_of(model), ledger


def everything(model: nn.Module, optimizer: torch.optim.Optimizer, losses: list[Tensor]) -> dict[str, Tensor]:
    """Parameters, buffers, optimizer state and losses by name, as copies."""
    found = {f"model.{name}": value.clone() for name, value in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            found[f"optimizer.{index}.{name}"] = torch.as_tensor(value if value is not None else 0).clone()
    for group_number, group in enumerate(optimizer.state_dict()["param_groups"]):
        found[f"lr.{group_number}"] = torch.as_tensor(group["lr"])
    return found | {f"loss.{number}": loss for number, loss in enumerate(losses)}


def differences(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """Names of what is not the same to the bit."""
    names = [*one, *(name for name in other if name not in one)]
    return [name for name in names if name not in one or name not in other or not _same_bits(one[name], other[name])]


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and a.contiguous().flatten().view(torch.uint8).equal(b.contiguous().flatten().view(torch.uint8))
    )
