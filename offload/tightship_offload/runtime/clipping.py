"""`clip_grad_norm_` for gradients in host memory: on all threads, and in one pass where torch's takes three.

See [Note: norms] and [Note: deferred clipping]. Early updates stand where nothing is clipped.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from tightship_offload.runtime.engine import engines_of
from tightship_offload.runtime.norms import is_large, total_norm


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
    the norm first, touches gradients only if they are to be scaled, and leaves scaling those of moving layers to their
    update. The norm is torch's, to the bit, except of large gradients (see norms.py). Source of the rule: torch's
    `clip_grads_with_norm_` scales by `max_norm / (norm + 1e-6)`, at most 1.

    :raises RuntimeError: the norm is not finite and `error_if_nonfinite` is set.
    """
    found = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    engines = engines_of(found)
    for engine in engines:
        engine.updates.write_clips()
    with torch._C.DisableTorchFunctionSubclass():
        given = [p for p in found if p.grad is not None]
        gradients = [p.grad for p in given if p.grad is not None]
        ours = None
        if float(norm_type) == 2.0:
            known: dict[int, float | Tensor] = {}
            for engine in engines:
                engine.gradients.takes_squares = is_large(gradients)
                known |= engine.updates.known_squares()
            ours = total_norm(gradients, known)
        if ours is not None and error_if_nonfinite and not ours.isfinite():
            ours = None  # torch has the words for it
        norm = nn.utils.get_total_norm(gradients, norm_type, error_if_nonfinite, foreach) if ours is None else ours
        coefficient = float(max_norm) / (norm + 1e-6)
    if bool(coefficient >= 1.0):
        return norm
    for engine in engines:
        given = engine.updates.clip_later(given, float(coefficient))
    if ours is None:
        nn.utils.clip_grads_with_norm_(given, max_norm, norm, foreach)
    else:
        _scale([p.grad for p in given if p.grad is not None], float(coefficient))
    return norm


def _scale(gradients: list[Tensor], factor: float) -> None:
    for device in {gradient.device for gradient in gradients}:
        torch._foreach_mul_([gradient for gradient in gradients if gradient.device == device], factor)
