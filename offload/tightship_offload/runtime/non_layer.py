"""What of a training does not move: parameters outside of layers, their optimizer state, and buffers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tightship_offload.errors import OffloadError


def rest_of(model: nn.Module, optimizer: Optimizer, moving: Collection[int]) -> dict[str, Any]:
    """Plain tensors, where they are, and numbers. Learning rates and schedules are the script's own.

    :param moving: ids of the parameters that move.
    """
    state: dict[Tensor, dict[str, Any]] = optimizer.__dict__["state"]
    tensors = {name: p for name, p in model.named_parameters() if id(p) not in moving} | dict(model.named_buffers())
    return {
        "tensors": {name: _alone(tensor) for name, tensor in tensors.items()},
        "state": {
            name: {key: _alone(value) for key, value in state[p].items()}
            for name, p in model.named_parameters()
            if id(p) not in moving and p in state
        },
    }


def check_rest(model: nn.Module, moving: Collection[int], rest: dict[str, Any]) -> None:
    """:raises OffloadError: the copy is of a model with other parts."""
    tensors = {name: p for name, p in model.named_parameters() if id(p) not in moving} | dict(model.named_buffers())
    if tensors.keys() != rest["tensors"].keys():
        raise OffloadError(
            "The files are of a training with other parameters or buffers outside of its layers; give another folder"
        )


@torch.no_grad()
def put_back(model: nn.Module, optimizer: Optimizer, moving: Collection[int], rest: dict[str, Any]) -> None:
    """Make it what it was."""
    tensors = {name: p for name, p in model.named_parameters() if id(p) not in moving} | dict(model.named_buffers())
    for name, tensor in tensors.items():
        tensor.copy_(rest["tensors"][name])
    for name, parameter in model.named_parameters():
        if name in rest["state"]:
            optimizer.state[parameter] = dict(rest["state"][name])
            place_state(optimizer, parameter, parameter.device)


def place_state(optimizer: Optimizer, parameter: nn.Parameter, device: torch.device) -> None:
    """Bring a parameter's state where the optimizer looks for it while the parameter is on `device`.

    Numbers (`step`) are in host memory, but for optimizers whose kernels read them on the device.
    """
    state = optimizer.state.get(parameter)
    if not state:
        return
    group = next(group for group in optimizer.param_groups if any(p is parameter for p in group["params"]))
    on_device = device.type == "cpu" or group.get("fused") or group.get("capturable")
    for key, value in state.items():
        if isinstance(value, Tensor) and (value.dim() or on_device):
            state[key] = value.to(device)


def _alone(value: Any) -> Any:
    """A tensor as itself, or, of a larger storage, as a copy in host memory: a file holds whole storages."""
    if not isinstance(value, Tensor):
        return value
    there = value.detach()
    is_whole = there.untyped_storage().nbytes() == there.numel() * there.element_size()
    return there if is_whole else there.to("cpu", copy=True)
