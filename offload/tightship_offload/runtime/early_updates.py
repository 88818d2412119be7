"""Updates that start during backward: what the loop declares, and how one is taken back.

[Note: early updates] The loop declares how many backward passes make a step, and whether it clips. In the last of
them a layer is updated as soon as its gradients have left. Until `optimizer.step()` confirms it, the update is
provisional: if the layer's parameters or gradients are touched before that in any way (a clipping that bites, an
edit, another forward, a skipped step, a look), or the learning rate is changed, it is taken back: weights and state
are restored from a copy, and the layer is updated again when `step` is called. Without a copy (`undo=False` saves its
memory) such a touch is refused. Either way nothing is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tightship_offload.errors import OffloadError
from tightship_offload.runtime.layer import Layer


@dataclass(frozen=True, kw_only=True)
class EarlyUpdates:
    """What the loop declares. See [Note: early updates]."""

    micro_batches: int = 1
    """Backward passes between two optimizer steps."""
    undo: bool = True
    """Keep a copy of what an early update overwrites: as much host memory as weights and optimizer state together."""

    def __post_init__(self) -> None:
        if self.micro_batches < 1:
            raise OffloadError(f"micro_batches is {self.micro_batches}; expected 1 or more")


class Undo:
    """The copy of one layer's weights and optimizer state; its memory is used again for the next step."""

    def __init__(self) -> None:
        self._weights: list[tuple[Tensor, Tensor]] = []
        self._state: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._spare: dict[tuple[int, str], Tensor] = {}

    @torch.no_grad()
    def take(self, weights: Sequence[Tensor], states: Sequence[dict[str, Any]]) -> None:
        """Copy what is there now."""
        self._weights = [(w, self._copy(n, "", w)) for n, w in enumerate(weights)]
        self._state = [
            (state, {k: self._copy(n, k, v) if isinstance(v, Tensor) else v for k, v in state.items()})
            for n, state in enumerate(states)
        ]

    @torch.no_grad()
    def give_back(self) -> None:
        """Write it over what is there now."""
        for weight, copy in self._weights:
            weight.copy_(copy)
        for state, copies in self._state:
            for key in [key for key in state if key not in copies]:
                del state[key]
            _restore(state, copies)

    def _copy(self, number: int, key: str, value: Tensor) -> Tensor:
        spare = self._spare.get((number, key))
        if spare is None or spare.shape != value.shape or spare.dtype != value.dtype:
            spare = self._spare[number, key] = torch.empty_like(value)
        return spare.copy_(value)


def _restore(state: dict[str, Any], copies: Mapping[str, Any]) -> None:
    for key, copy in copies.items():
        if isinstance(copy, Tensor) and isinstance(state.get(key), Tensor):
            state[key].copy_(copy)
        else:
            state[key] = copy.clone() if isinstance(copy, Tensor) else copy


def refusal(layer: Layer) -> OffloadError:
    """What is said where there is no copy to go back to."""
    return OffloadError(
        f"Layer {layer.name!r} was updated during backward, and the loop uses it or changes its gradients or settings "
        "before optimizer.step(); declare what the loop does (micro_batches), keep a copy (undo=True), or do not "
        "update during backward"
    )
