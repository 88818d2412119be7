"""The user's optimizer for some of its parameters.

[Note: part of an optimizer] A layer's update is the `step` of the user's own optimizer class on an object that shares
everything with the user's optimizer but its parameters: those of one layer (their shadows), with the settings that the
groups had when `step` was called, so that a scheduler which changes them next does not matter. Optimizers whose rule
is per parameter cannot tell the difference. One that keeps a running value in its groups can, and is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tightship_offload.errors import OffloadError
from tightship_offload.runtime.masters import State, wants_master

_NOT_PER_PARAMETER = (torch.optim.LBFGS, torch.optim.SparseAdam)
_TRIED = 64
"""Elements at most in each dimension of a parameter on which an optimizer is tried."""


def bare_step(kind: type[Optimizer]) -> Callable[[Optimizer], Any]:
    """A class's `step` without the wrapper that runs hooks: they run once per step and not once per layer."""
    step: Any = kind.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step  # type: ignore[no-any-return]


def check_optimizer(optimizer: Optimizer) -> None:
    """:raises OffloadError: its rule is known to need all parameters at once."""
    if isinstance(optimizer, _NOT_PER_PARAMETER):
        raise OffloadError(
            f"{type(optimizer).__name__} cannot update one layer at a time; use AdamW(fused=True) or another optimizer "
            "whose rule is per parameter"
        )


def part_of(optimizer: Optimizer, kind: type[Optimizer], groups: list[State], state: Any) -> Optimizer:
    """See [Note: part of an optimizer].

    :param kind: the user's class, which the optimizer itself may not be of any more.
    """
    part: Optimizer = object.__new__(kind)
    part.__dict__.update(optimizer.__dict__)
    part.__dict__.pop("step", None)
    part.__dict__.update(param_groups=groups, state=state)
    return part


def is_open(group: State) -> bool:
    """Whether a script leaves to torch in which form a group is updated: on the CPU it takes a loop."""
    return "fused" in group and group["fused"] is None and group.get("foreach") is None


def as_fused(group: State) -> State:
    """A group's settings in the fused form, where the script leaves it open."""
    return {**group, "fused": True} if is_open(group) else group


def try_optimizer(
    optimizer: Optimizer, parameters: Sequence[nn.Parameter], *, master: bool, fused: bool = False
) -> None:
    """Let the optimizer's class update small parameters in host memory, as it will have to.

    :param parameters: those that will be updated there.
    :param fused: see `as_fused`.
    :raises OffloadError: it cannot, or keeps running values in its groups.
    """
    kind, ours = type(optimizer), {id(p): p for p in parameters if p.requires_grad}
    for group in optimizer.param_groups:
        like = next((ours[id(p)] for p in group["params"] if id(p) in ours), None)
        if like is None or not like.is_floating_point():
            continue
        dtype = torch.float32 if master and wants_master(like) else like.dtype
        small = nn.Parameter(torch.ones([min(n, _TRIED) for n in like.shape], dtype=dtype, device="cpu"))
        small.grad = torch.full_like(small, 1e-3)
        settings = as_fused(group) if fused else group
        tried = {**settings, "params": [small]}
        before = snapshot(settings)
        try:
            with torch.random.fork_rng(devices=[]):
                bare_step(kind)(part_of(optimizer, kind, [tried], defaultdict(dict)))
        except Exception as error:
            raise OffloadError(
                f"{kind.__name__} cannot update parameters in host memory ({type(error).__name__}: "
                f"{' '.join(str(error).split())[:150]}); use AdamW(fused=True) or another optimizer that runs "
                "on the CPU"
            ) from error
        unchanged(kind, [tried], [before])


def snapshot(group: State) -> State:
    """A group's settings as they are now; a learning rate may be a tensor that a scheduler fills anew."""
    return {
        key: value.clone() if isinstance(value, Tensor) else value for key, value in group.items() if key != "params"
    }


def unchanged(kind: type[Optimizer], groups: Sequence[State], before: Sequence[State]) -> None:
    """:raises OffloadError: a step has written into its groups."""
    for group, old in zip(groups, before, strict=True):
        for key, value in group.items():
            if key != "params" and (key not in old or not _same(value, old[key])):
                raise OffloadError(
                    f"{kind.__name__} keeps {key!r} in its parameter groups as it steps, so it cannot update one layer "
                    "at a time; use an optimizer whose rule is per parameter"
                )


def same_settings(one: State, other: State) -> bool:
    """Whether two groups would update alike."""
    return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())


def _same(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)
    return a is b or bool(a == b)
