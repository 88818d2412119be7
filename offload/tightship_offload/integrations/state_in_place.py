"""Lightning's strategies, as they resume a training, without moving an offloaded optimizer's state to the device.

Loading a state dict puts each layer's state where its parameters are. Lightning then moves all of it to the device,
where that of an oversized model has no room.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from torch.optim import Optimizer


def leave_state_in_place() -> None:
    """From now on, in this process, where Lightning is loaded."""
    for package in ("lightning.pytorch", "pytorch_lightning"):
        module: Any = sys.modules.get(f"{package}.strategies.strategy")
        real = getattr(module, "_optimizer_to_device", None)
        if real is not None and not getattr(real, "tightship", False):
            module._optimizer_to_device = _unless_offloaded(real)


def _unless_offloaded(real: Any) -> Any:
    @functools.wraps(real)
    def move(optimizer: Optimizer, device: Any) -> None:
        if not hasattr(type(optimizer), "tightship_kind"):
            real(optimizer, device)

    move.tightship = True  # type: ignore[attr-defined]
    return move
