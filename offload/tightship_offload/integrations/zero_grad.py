"""`model.zero_grad()` right after `optimizer.step()`, as Hugging Face's Trainer calls it, without waiting for updates.

It looks at every gradient before it drops it, and to touch a parameter whose update is on its way is to wait. An update
has its gradients in hand already, so there is nothing to wait for; those of a backward that has failed are dropped with
the others. On any other module it does what it always did.
"""

from __future__ import annotations

import functools

import torch
from torch import nn

from tightship_offload.runtime.engine import engine_of, has_engine


def wait_for_no_update() -> None:
    """From now on, in this process."""
    real = nn.Module.zero_grad
    if getattr(real, "tightship", False):
        return

    @functools.wraps(real)
    def zero_grad(self: nn.Module, set_to_none: bool = True) -> None:
        for part in self.modules():
            if has_engine(part):
                engine_of(part).end_backward()
        if not set_to_none:
            real(self, set_to_none)
            return
        with torch._C.DisableTorchFunctionSubclass():
            real(self, set_to_none)

    zero_grad.tightship = True  # type: ignore[attr-defined]
    nn.Module.zero_grad = zero_grad  # type: ignore[method-assign]
