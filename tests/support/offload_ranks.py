"""One rank of a data parallel training, with DistributedDataParallel or with a window. Run by its test."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from offload_exactness import VOCABULARY, Model, everything
from offload_machines import Running, machine
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from waiting import PATIENCE_S

import tightship_offload as offload
from tightship_offload.backends.race_detector import Ledger

STEPS = 12


class Uneven(Model):
    """Which blocks run differs from rank to rank and from step to step."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for number, block in enumerate(self.blocks):
            if (int(tokens.sum()) + number) % 3:
                x = block(x)
        return self.head(x)


class Normed(Model):
    """With buffers that batches change."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = nn.BatchNorm1d(VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.batch(super().forward(tokens).transpose(1, 2)).transpose(1, 2)


KINDS: dict[str, type[Model]] = {"plain": Model, "uneven": Uneven, "normed": Normed}


def train(kind: str, early: bool, window: bool) -> dict[str, Tensor]:
    rank = dist.get_rank()
    torch.manual_seed(rank)  # ranks start apart; the first one's weights count
    model: Any = KINDS[kind]()
    model.blocks[1].requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, fused=True)
    ledger = Ledger()
    with machine(seed=rank, ledger=ledger) if window else nullcontext() as on:
        if on is not None:
            declared = offload.EarlyUpdates() if early else None
            run, _ = offload.apply(model, optimizer, window=2, early=declared, backend=on)
        else:
            run = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
        torch.manual_seed(100 + rank)
        losses = []
        for _ in range(STEPS):
            tokens = torch.randint(0, VOCABULARY, (2, 6))
            loss = F.cross_entropy(run(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            norm = offload.clip_grad_norm_(model.parameters(), 2.5)
            optimizer.step()
            optimizer.zero_grad()
            losses += [loss.detach(), norm]
        found = everything(model, optimizer, losses)
    assert ledger.races == []
    return found


def main() -> None:
    folder, rank, Running.kind = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=timedelta(seconds=2 * PATIENCE_S)
    )
    found = {
        f"{kind} {how}": train(kind, how == "early", how != "ddp")
        for kind in KINDS
        for how in ("ddp", "after-step", "early")
    }
    torch.save(found, folder / f"rank{rank}.pt")
    try:
        nn.parallel.DistributedDataParallel(offload.apply(*_pair(), window=2)[0])
    except RuntimeError as error:
        (folder / f"refused{rank}").write_text(str(error))
    dist.destroy_process_group()


def _pair() -> tuple[Any, Any]:
    model = Model()
    return model, torch.optim.AdamW(model.parameters())


if __name__ == "__main__":
    main()
