"""Accelerate: `OffloadAccelerator` in the place of `Accelerator`, with one argument more."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from accelerate import Accelerator
from torch import nn
from torch.optim import Optimizer

from tightship_offload.errors import OffloadError
from tightship_offload.integrations.adapter import OneLine, refuse_processes
from tightship_offload.plan.model import Plan
from tightship_offload.runtime.clipping import clip_grad_norm_


class OffloadAccelerator(Accelerator):  # type: ignore[misc]
    """An `Accelerator` that keeps a window of the trained model's layers on the device.

    The plan goes to the model and the optimizer that are prepared together; other models are moved as ever.
    """

    def __init__(self, *args: Any, offload: str | os.PathLike[str] | Plan | Mapping[str, Any], **kwargs: Any) -> None:
        """:param offload: a plan, or the arguments of `apply` by hand: `{"window": 3}`.

        :raises OffloadError: the plan cannot be read, or there are several processes.
        """
        self._offload = OneLine(offload)
        self._offloaded = False
        super().__init__(*args, **kwargs)
        refuse_processes()

    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        """As ever.

        :raises OffloadError: the plan does not fit, or it is not clear to which model it belongs.
        """
        optimizers = [one for one in args if isinstance(one, Optimizer)]
        if self._offloaded or not optimizers:
            return super().prepare(*args, device_placement=device_placement)
        pairs = [(m, o) for m in args if isinstance(m, nn.Module) for o in optimizers if _trains(o, m)]
        if len(pairs) != 1:
            raise OffloadError(
                f"prepare was given {len(pairs)} pairs of a model and its optimizer; give it the model to offload and "
                "its optimizer in one call, and others in another"
            )
        model, optimizer = pairs[0]
        self._offload.apply(model, optimizer)
        self._offloaded = True
        with self._offload.layers_stay(model):
            return super().prepare(*args, device_placement=device_placement)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        """The same norm and gradients to the bit; updates that a plan starts during backward may stand."""
        if not self._offloaded:
            return super().clip_grad_norm_(parameters, max_norm, norm_type=norm_type)
        self.unscale_gradients()
        return clip_grad_norm_(parameters, max_norm, norm_type)


def _trains(optimizer: Optimizer, model: nn.Module) -> bool:
    held = {id(parameter) for parameter in model.parameters()}
    return all(id(parameter) in held for group in optimizer.param_groups for parameter in group["params"])
