"""`clip_grad_norm_` that lets early updates stand where nothing is clipped; the result is torch's own, to the bit."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


@torch.no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """As `torch.nn.utils.clip_grad_norm_`, which works too.

    Torch's touches every gradient, so that all early updates (see early_updates.py) would be taken back; this one reads
    the norm first and touches gradients only if they are to be scaled. Source of the rule: torch's
    `clip_grads_with_norm_` scales by `max_norm / (norm + 1e-6)`, at most 1.

    :raises RuntimeError: the norm is not finite and `error_if_nonfinite` is set.
    """
    found = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    with torch._C.DisableTorchFunctionSubclass():
        gradients = [p.grad for p in found if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients, norm_type, error_if_nonfinite, foreach)
        unscaled = bool(float(max_norm) / (norm + 1e-6) >= 1.0)
    if not unscaled:
        nn.utils.clip_grads_with_norm_(found, max_norm, norm, foreach)
    return norm
