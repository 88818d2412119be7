"""fp32 masters of 16-bit parameters: what the optimizer updates, and what a checkpoint keeps of them.

[Note: masters] Every trained 16-bit parameter has one, wherever it is: beside its layer in host memory, or beside the
parameter on the device. A master is in the optimizer's state under `MASTER`, so it is in `state_dict()`, which plain
torch loads (and ignores it there). After a load it stands where it rounds to the weight, and elsewhere the weight
counts: so models and optimizers may be loaded in either order, and a weight that somebody edits is edited.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

State: TypeAlias = dict[str, Any]
"""What an optimizer keeps of one parameter, a group's settings, or a state dict of either."""

MASTER = "master"
"""Key in the optimizer's state of a parameter."""
_NARROW = (torch.bfloat16, torch.float16)


def wants_master(parameter: nn.Parameter) -> bool:
    """Whether it is trained in 16 bits."""
    return parameter.requires_grad and parameter.dtype in _NARROW


@torch.no_grad()
def follow(master: Tensor, value: Tensor) -> None:
    """Take over what somebody wrote into a 16-bit value. See [Note: masters]."""
    master.copy_(torch.where(master.to(value.dtype) == value, master, value.float()))


def widen(state: State) -> None:
    """The optimizer's state of a 16-bit parameter as that of its master."""
    for key, value in state.items():
        if isinstance(value, Tensor) and value.dtype in _NARROW:
            state[key] = value.float()


def narrow(state: State, parameter: nn.Parameter) -> None:
    """As the optimizer expects it of the parameter itself, without a master."""
    state.pop(MASTER, None)
    for key, value in state.items():
        if isinstance(value, Tensor) and value.dim() and value.is_floating_point():
            state[key] = value.to(parameter.dtype)


def restore(state: State, saved: State, master: Tensor) -> None:
    """After `load_state_dict`, which has cast everything to the parameter's format: as it was saved, in fp32."""
    for key, value in saved.items():
        if key != MASTER and isinstance(value, Tensor) and value.dim() and value.is_floating_point():
            state[key] = value.to(master.device, torch.float32, copy=True)
    if MASTER in saved:
        with torch.no_grad():
            master.copy_(saved[MASTER])
        state[MASTER] = master


class RestMasters:
    """Of the parameters that do not move."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._of = {id(p): nn.Parameter(p.detach().float()) for p in parameters if wants_master(p)}
        self._cast_at: dict[int, int] = {}

    def of(self, parameter: nn.Parameter) -> nn.Parameter | None:
        """The master that is updated for it."""
        return self._of.get(id(parameter))

    def read(self, parameter: nn.Parameter) -> nn.Parameter | None:
        """The master, up to date and with the parameter's gradient."""
        master = self._of.get(id(parameter))
        if master is None:
            return None
        if self._cast_at.get(id(parameter)) != parameter._version:
            follow(master, parameter.detach())
        master.grad = None if parameter.grad is None else parameter.grad.float()
        return master

    @torch.no_grad()
    def write(self, parameter: nn.Parameter) -> None:
        """The parameter is its master, rounded."""
        master = self._of.get(id(parameter))
        if master is not None and master.grad is not None:
            master.grad = None
            parameter.copy_(master)
            self._cast_at[id(parameter)] = parameter._version

    def doubt(self, parameter: nn.Parameter) -> None:
        """Compare the two before the next update."""
        self._cast_at.pop(id(parameter), None)
