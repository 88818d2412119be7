"""Hugging Face: `OffloadTrainer` in the place of `Trainer`, with one argument more."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import Trainer

from tightship_offload.errors import OffloadError
from tightship_offload.integrations.adapter import OneLine
from tightship_offload.plan.model import Plan
from tightship_offload.runtime.clipping import clip_grad_norm_


class OffloadTrainer(Trainer):  # type: ignore[misc]
    """A `Trainer` whose model is a window of layers on the device.

    It is a mixin as well: `class MyTrainer(OffloadTrainer, SFTTrainer): ...`.
    """

    def __init__(self, *args: Any, offload: str | os.PathLike[str] | Plan | Mapping[str, Any], **kwargs: Any) -> None:
        """:param offload: a plan, or the arguments of `apply` by hand: `{"window": 3}`.

        :raises OffloadError: it does not fit the model, or batches would be split over several GPUs.
        """
        self._offload = OneLine(offload)
        super().__init__(*args, **kwargs)
        if self.args.n_gpu > 1:
            raise OffloadError(
                f"Trainer would split each batch over {self.args.n_gpu} GPUs; let it see one: CUDA_VISIBLE_DEVICES=0"
            )

    def create_accelerator_and_postprocess(self) -> None:
        """The Trainer itself moves model and batches; its accelerator would move the whole model once more."""
        super().create_accelerator_and_postprocess()
        self.accelerator.device_placement = False
        self.accelerator.clip_grad_norm_ = self._clip

    def _clip(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        # Accelerate's own looks at every gradient, so that updates which a plan starts during backward cannot stand.
        self.accelerator.unscale_gradients()
        return clip_grad_norm_(parameters, max_norm, norm_type)

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        with self._offload.layers_stay(model):
            super()._move_model_to_device(model, device)

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        """As ever, and then the plan is applied."""
        optimizer = super().create_optimizer(model)
        self._offload.apply(self.model if model is None else model, optimizer)
        return optimizer

    def floating_point_ops(self, inputs: Any) -> int:
        """As ever. It counts parameters after each backward, which is no reason to wait for their updates."""
        with torch._C.DisableTorchFunctionSubclass():
            return int(super().floating_point_ops(inputs))

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """As ever. Before training, too, only a window of the model is on the device."""
        self.create_optimizer()
        return super().evaluation_loop(*args, **kwargs)
