"""Lightning: `Trainer(strategy=OffloadStrategy("plan.yaml"))`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch.optim import Optimizer

from tightship_offload.errors import OffloadError
from tightship_offload.integrations.adapter import OneLine
from tightship_offload.plan.model import Plan
from tightship_offload.runtime.clipping import clip_grad_norm_


class OffloadStrategy(SingleDeviceStrategy):  # type: ignore[misc]
    """One device with a window of the module's layers while it is fitted; afterwards the module is an ordinary one."""

    strategy_name = "offload"
    optimizers: list[Optimizer]
    """Lightning's own property."""

    def __init__(self, offload: str | os.PathLike[str] | Plan | Mapping[str, Any], **options: Any) -> None:
        """:param offload: a plan, or the arguments of `apply` by hand: `{"window": 3}`.

        :param options: of Lightning's strategies: `checkpoint_io`, `precision_plugin`, and `device`.
        :raises OffloadError: the plan cannot be read.
        """
        self._offload = OneLine(offload)
        self._fitting = False
        super().__init__(**{"device": _device()} | options)

    def setup(self, trainer: Trainer) -> None:
        """As ever; a module that is not fitted has no optimizer, and is moved as a whole."""
        self._fitting = trainer.state.fn == TrainerFn.FITTING
        super().setup(trainer)

    def model_to_device(self) -> None:
        """Move what does not take turns."""
        if not self._fitting:
            super().model_to_device()
            return
        with self._offload.layers_stay(self.model):
            super().model_to_device()

    def setup_optimizers(self, trainer: Trainer) -> None:
        """As ever, and then the plan is applied.

        :raises OffloadError: the plan does not fit, or the module has several optimizers.
        """
        super().setup_optimizers(trainer)
        if len(self.optimizers) != 1:
            raise OffloadError(
                f"{type(self.lightning_module).__name__} has {len(self.optimizers)} optimizers; a window needs exactly "
                "one: return one from configure_optimizers"
            )
        self._offload.apply(self.model, self.optimizers[0])
        self.optimizers = list(
            self.optimizers
        )  # Lightning's wrappers are of the optimizer's class, which is another now

        self.precision_plugin.clip_grad_by_norm = self._clip

    def _clip(self, optimizer: Optimizer, clip_val: float = 0.0) -> None:
        # Lightning's own touches every gradient, so that updates which a plan starts during backward cannot stand.
        if clip_val > 0:
            clip_grad_norm_(self.precision_plugin.main_params(optimizer), clip_val)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load it where the parameters are; Lightning would move all of it to the device."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            optimizer.load_state_dict(state)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """As ever, but called through the module, so that the window sees where a forward begins."""
        with self.precision_plugin.train_step_context():
            return self._forward_redirection(self.model, self.lightning_module, "training_step", *args, **kwargs)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """As `training_step`."""
        with self.precision_plugin.val_step_context():
            return self._forward_redirection(self.model, self.lightning_module, "validation_step", *args, **kwargs)

    def teardown(self) -> None:
        """The training is over: the module is an ordinary one."""
        if self._fitting and self.model is not None:
            self._offload.remove(self.model)
        super().teardown()


def _device() -> torch.device:
    """Lightning refuses a GPU without a number."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
