"""Loops of users, run once without and once with a window, and compared to the bit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from offload_exactness import VOCABULARY, Model, differences, everything
from offload_machines import machine
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

import tightship_offload as offload
from tightship_offload.backends.race_detector import Ledger

STEPS = 12
Loop = Callable[[Any, Any, Callable[[], None]], list[Tensor]]
"""(model, optimizer, apply) → losses; it calls `apply` where a user would."""


def adamw(parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, lr=1e-2, fused=True)


def same(
    loop: Loop,
    make_model: Callable[[], Any] = Model,
    make_optimizer: Callable[[Any], Any] = adamw,
    *,
    window: int = 2,
    **options: Any,
) -> None:
    """Runs the loop twice and compares all that it leaves."""
    results = []
    for with_window in (False, True):
        torch.manual_seed(7)
        model = make_model()
        optimizer = make_optimizer([p for p in model.parameters() if p.requires_grad])
        ledger = Ledger()
        with machine(ledger=ledger) if with_window else nullcontext() as on:

            def start(model: Any = model, optimizer: Any = optimizer, on: Any = on) -> None:
                if on is not None:
                    assert offload.apply(model, optimizer, window=window, backend=on, **options) == (model, optimizer)

            torch.manual_seed(11)
            losses = loop(model, optimizer, start)
            results.append(everything(model, optimizer, losses))
        assert ledger.races == []
        assert not with_window or ledger.accesses
    assert differences(*results) == []
    assert all(torch.isfinite(value).all() for value in results[0].values())


def batch(*, size: int = 2) -> Tensor:
    return torch.randint(0, VOCABULARY, (size, 6))


def loss_of(model: Any, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def each_step(body: Callable[[Any, Any], Tensor]) -> Loop:
    """A loop of the usual shape around `body(model, optimizer)`, which returns the loss."""

    def loop(model: Any, optimizer: Any, start: Callable[[], None]) -> list[Tensor]:
        start()
        return [body(model, optimizer).detach() for _ in range(STEPS)]

    return loop


def plain_step(model: Any, optimizer: Any) -> Tensor:
    loss = loss_of(model, batch())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
