"""The update of one layer, as the lane does it: in one pass over memory, or by the optimizer's own class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from tightship_offload.runtime.deferred_clip import DeferredClip
from tightship_offload.runtime.layer import Layer
from tightship_offload.runtime.masters import State
from tightship_offload.runtime.one_pass import OnePass, Update


@dataclass(frozen=True)
class Work:
    """What one layer is updated with."""

    gradients: list[tuple[int, int, Tensor]]
    """(number of the group, place in the layer, gradient)"""
    settings: list[State]
    """Of all groups."""

    @property
    def places(self) -> list[tuple[int, int]]:
        """Which parameters are updated."""
        return [(number, at) for number, at, _ in self.gradients]


@dataclass(frozen=True, kw_only=True)
class LayerUpdate:
    """All that one update reads and writes; made by the user's thread, run by the lane."""

    layer: Layer
    work: Work
    part: Optimizer
    """See [Note: part of an optimizer]."""
    step: Callable[[Optimizer], Any]
    state: Mapping[Tensor, Any]
    """The part's: by shadow."""
    clip: DeferredClip | None
    scaling: Mapping[str, Tensor]
    """What a GradScaler that leaves unscaling to the optimizer has given it, in host memory."""
    threads: int

    @property
    def shadows(self) -> list[nn.Parameter]:
        """The parameters that are updated."""
        return [self.layer.shadows[at] for _, at, _ in self.work.gradients]

    def run(self, one_pass: OnePass | None) -> bool:
        """Update weights, masters and state. Whether that took one pass."""
        if one_pass is not None and self._in_one_pass(one_pass):
            return True
        if self.clip is not None:
            self.clip.write()
        for shadow, (_, _, gradient) in zip(self.shadows, self.work.gradients, strict=True):
            shadow.grad = gradient.to(shadow)  # itself where device and format are the shadow's
        self.step(self.part)
        for shadow in self.shadows:
            shadow.grad = None
        self.layer.write_masters()
        return False

    def _in_one_pass(self, one_pass: OnePass) -> bool:
        layer = self.layer
        has_masters = any(layer.masters[at] is not None for _, at, _ in self.work.gradients)
        if not has_masters and self.clip is None:
            return False  # torch's own is one pass already
        found_inf, divisor = self.scaling.get("found_inf"), self.scaling.get("grad_scale")
        if found_inf is not None and bool(found_inf):
            return False
        if divisor is not None and any(layer.masters[at] is None for _, at, _ in self.work.gradients):
            return False  # torch's writes unscaled gradients back
        updates = [
            Update(
                weight=layer.shadows[at],
                gradient=gradient,
                state=self.state.get(layer.shadows[at], {}),
                group=self.work.settings[number],
                rounded=None if layer.masters[at] is None else layer.views[at],
                factor=1.0 if self.clip is None else self.clip.of(at, gradient),
            )
            for number, at, gradient in self.work.gradients
        ]
        return one_pass.run(updates, threads=self.threads, divisor=1.0 if divisor is None else float(divisor))
