"""Gradients that clipping has scaled in name only: the update multiplies them as it reads them.

[Note: deferred clipping] To scale gradients is a pass over all of them, and the update reads them anyway. So
`offload.clip_grad_norm_` leaves the factor of a moving layer with the layer, and its parameters are pending (see [Note:
pending parameters]): whoever looks at a gradient, by its parameter, finds it scaled. The update multiplies and rounds
as if it had been written back. After it, the gradients in memory are still as they were, so they stay pending until
they are dropped, as nearly every loop does next. A tensor that was taken out of `.grad` before clipping is not seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


class DeferredClip:
    """Of one layer."""

    def __init__(self, factor: float, gradients: Mapping[int, Tensor]) -> None:
        """:param gradients: by place in the layer."""
        self.factor = factor
        self._gradients = dict(gradients)

    def of(self, at: int, gradient: Tensor) -> float:
        """What this gradient is still to be multiplied by."""
        mine = self._gradients.get(at)
        return self.factor if mine is not None and mine.data_ptr() == gradient.data_ptr() else 1.0

    @torch.no_grad()
    def write(self) -> None:
        """Multiply them where they are."""
        gradients, self._gradients = self._gradients, {}
        for gradient in gradients.values():
            gradient.mul_(self.factor)

    def write_what_is_left(self, parameters: Sequence[nn.Parameter]) -> None:
        """Multiply those that are still gradients of the layer's parameters."""
        with torch._C.DisableTorchFunctionSubclass():
            now = {at: p.grad.data_ptr() for at, p in enumerate(parameters) if p.grad is not None}
        self._gradients = {at: g for at, g in self._gradients.items() if now.get(at) == g.data_ptr()}
        self.write()
