"""What the adapters share: a plan, or a window by hand, for the model that a library trains.

[Note: layers stay] A library moves the model to the device before it makes the optimizer; `apply` needs both, and an
oversized model would not survive the move. So for the time of the move the layers that are going to take turns take on
the dtype that is asked for, but do not go: everything else goes, through the classes' own code, and `apply` does the
rest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter, signature
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tightship_offload.errors import OffloadError
from tightship_offload.integrations.zero_grad import wait_for_no_update
from tightship_offload.plan.file import read_plan
from tightship_offload.plan.model import Plan, model_differences
from tightship_offload.runtime.apply import apply, check_model, describe
from tightship_offload.runtime.blocks import Block, find_blocks
from tightship_offload.runtime.engine import engine_of, has_engine
from tightship_offload.runtime.machine import check_machine
from tightship_offload.runtime.run_report import report_to_run

BY_HAND = tuple(name for name, one in signature(apply).parameters.items() if one.kind is Parameter.KEYWORD_ONLY)
"""What may be given instead of a plan."""


class OneLine:
    """See the module."""

    def __init__(self, offload: str | os.PathLike[str] | Plan | Mapping[str, Any]) -> None:
        """:param offload: a plan, or the arguments of `apply` by hand: `{"window": 3}`.

        :raises OffloadError: the plan cannot be read or is for another machine, or there is no such argument.
        """
        self._plan: Plan | None = None
        self._by_hand: dict[str, Any] = {}
        if isinstance(offload, Mapping):
            self._by_hand = dict(offload)
            strange = [name for name in self._by_hand if name not in BY_HAND]
            if strange or "window" not in self._by_hand:
                raise OffloadError(
                    f"offload has no {strange[0]!r:.80}; expected {', '.join(BY_HAND)}"
                    if strange
                    else 'offload by hand needs a window: offload={"window": 3}'
                )
        else:
            self._plan = offload if isinstance(offload, Plan) else read_plan(offload)
            check_machine(self._plan)

    def apply(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Apply it, where that has not been done yet.

        :raises OffloadError: it does not fit; the model is as it was.
        """
        part = self._part(model)
        if has_engine(part):
            return
        refuse_processes()
        apply(part, optimizer, self._plan, **self._by_hand)
        wait_for_no_update()
        if self._plan is not None:
            report_to_run(engine_of(part), self._plan)

    def remove(self, model: nn.Module) -> None:
        """Turn the model into an ordinary one, see `Engine.remove`, where it has been applied."""
        part = self._part(model)
        if has_engine(part):
            engine_of(part).remove()

    @contextmanager
    def layers_stay(self, model: nn.Module) -> Iterator[None]:
        """Within it the model moves without the layers that take turns; see [Note: layers stay].

        :raises OffloadError: the plan does not fit the model.
        """
        with layers_stay([block.module for block in self._moving(model)]):
            yield

    def _moving(self, model: nn.Module) -> list[Block]:
        part = self._part(model)
        if self._plan is not None:
            names, resident = self._plan.model.layers, set(self._plan.window.resident)
        else:
            names, resident = self._by_hand.get("layers"), set(self._by_hand.get("resident", ()))
        return [block for index, block in enumerate(find_blocks(part, names)) if index not in resident]

    def _part(self, model: nn.Module) -> nn.Module:
        if self._plan is None:
            return model
        part = planned_part(model, self._plan)
        if part is None:
            check_model(self._plan, model)
            return model
        return part


def planned_part(model: nn.Module, plan: Plan) -> nn.Module | None:
    """The module that a plan is for: a library may wrap it, and a plan may know a model without its head."""
    return next((part for part in model.modules() if fits(part, plan)), None)


def fits(model: nn.Module, plan: Plan) -> bool:
    """Whether the plan is for this very module."""
    if any(isinstance(parameter, nn.UninitializedParameter) for parameter in model.parameters()):
        return False
    try:
        blocks = find_blocks(model, plan.model.layers)
    except OffloadError:  # it has no such layers
        return False
    return not model_differences(plan.model, describe(model, blocks))


def refuse_processes() -> None:
    """:raises OffloadError: the libraries would wrap the model in theirs for several processes."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        count = torch.distributed.get_world_size()
        if count > 1:
            raise OffloadError(
                f"This training has {count} processes, whose wrapper of the model expects all gradients on the device; "
                "start one process, or apply the plan in a plain loop"
            )


@contextmanager
def layers_stay(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Within it a model moves without these layers; see [Note: layers stay]."""
    # Where a plan of the launcher holds them already, nothing is to be done.
    modules = [layer for layer in layers if "_apply" not in layer.__dict__]
    for module in modules:
        module.__dict__["_apply"] = _stay(module)
    try:
        yield
    finally:
        for module in modules:
            del module.__dict__["_apply"]


def _stay(module: nn.Module) -> Callable[..., nn.Module]:
    """`module._apply` without the move that its function makes."""
    real: Callable[..., nn.Module] = module._apply

    def at_home(move: Callable[[torch.Tensor], torch.Tensor], *arguments: Any, **named: Any) -> nn.Module:
        return real(lambda tensor: tensor.to(move(tensor.new_empty((0,) * tensor.dim())).dtype), *arguments, **named)

    return at_home
