"""Adam and AdamW in one pass over memory: gradient in, fp32 weight and state in place, 16-bit weight out.

[Note: one pass] For a 16-bit parameter with an fp32 master, torch's fused Adam needs an fp32 copy of the gradient, and
the new master is rounded into the weight afterwards: three passes over fresh memory instead of one. native.cpp does
the same arithmetic in one. It rounds as torch's kernel does on this machine: torch's compiler was free to fuse a
product with the sum behind it, so `agree` tries which products it has fused, by comparing bits. Where no choice gives
torch's bits, or an optimizer has something that is not here (amsgrad, capturable, an own class), torch's own
kernel does it as before. A gradient that clipping scales is rounded to its own format as if it had been written back.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, product

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from tightship_offload.runtime.masters import State
from tightship_offload.runtime.native import native

FORMATS = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
"""As native.cpp numbers them."""
_KINDS: tuple[type[Optimizer], ...] = (torch.optim.Adam, torch.optim.AdamW)
_STATE = {"step", "exp_avg", "exp_avg_sq"}
_TRIED = (24, 79)
"""Tensors, and elements of each, on which agreement is tried: with all that may be left behind a last vector."""


class _Parameter(ctypes.Structure):
    """`Parameter` of native.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "average", "square", "gradient", "rounded")),
        ("count", ctypes.c_int64),
        ("gradient_format", ctypes.c_int32),
        ("rounded_format", ctypes.c_int32),
        *((name, ctypes.c_float) for name in ("factor", "divisor", "sign", "decay", "penalty", "average_new")),
        *((name, ctypes.c_float) for name in ("square_kept", "square_new", "correction", "epsilon", "step")),
    )


class _Rounding(ctypes.Structure):
    """`Rounding` of native.cpp."""

    _fields_ = tuple((name, ctypes.c_int32) for name in ("square", "tail_square", "lanes", "weight"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one parameter is updated with. All tensors are in host memory."""

    weight: Tensor
    """fp32."""
    gradient: Tensor
    state: State
    """The optimizer's, of `weight`."""
    group: State
    """Settings."""
    rounded: Tensor | None = None
    """Takes the new weight in 16 bits."""
    factor: float = 1.0
    """The gradient is multiplied by it, in its own format."""


class OnePass:
    """The compiled update, in the rounding of this machine's torch."""

    def __init__(self, library: ctypes.CDLL, rounding: _Rounding, *, decoupled: bool) -> None:
        """:param decoupled: AdamW's weight decay."""
        self._adam = library.tightship_adam
        self._decoupled = decoupled
        self._rounding = rounding
        self._formats = [dtype for dtype in FORMATS if dtype is not torch.float16 or has_fp16()]

    def run(self, updates: Sequence[Update], *, threads: int, divisor: float = 1.0) -> bool:
        """Do them all, and count their steps; False: one of them is not for us, and nothing has been changed.

        :param divisor: of a GradScaler that leaves unscaling to the optimizer.
        :raises MemoryError: not even for the list of pieces; nothing has been changed.
        """
        if not all(self._may(update) for update in updates):
            return False
        rows = (_Parameter * len(updates))(*(self._row(update, divisor) for update in updates))
        if self._adam(rows, len(updates), ctypes.byref(self._rounding), threads):
            raise MemoryError("no memory for an update's list of pieces")
        torch._foreach_add_([update.state["step"] for update in updates], 1)
        return True

    def _may(self, update: Update) -> bool:
        weight, state, group = update.weight, update.state, update.group
        if state.keys() != _STATE or why_not(group) is not None:
            return False
        same = [weight, state["exp_avg"], state["exp_avg_sq"]]
        others = [update.gradient] if update.rounded is None else [update.gradient, update.rounded]
        layout = _layout(weight)
        return (
            all(one.dtype is torch.float32 for one in same)
            and all(one.dtype in self._formats for one in others)
            and all(one.device.type == "cpu" and _layout(one) == layout for one in (*same, *others))
            and state["step"].device.type == "cpu"
        )

    def _row(self, update: Update, divisor: float) -> _Parameter:
        state, group, rounded = update.state, update.group, update.rounded
        beta1, beta2 = (float(beta) for beta in group["betas"])
        rate, weight_decay, step = float(group["lr"]), float(group["weight_decay"]), float(state["step"]) + 1
        decoupled = group.get("decoupled_weight_decay", self._decoupled)
        return _Parameter(
            weight=update.weight.data_ptr(),
            average=state["exp_avg"].data_ptr(),
            square=state["exp_avg_sq"].data_ptr(),
            gradient=update.gradient.data_ptr(),
            rounded=None if rounded is None else rounded.data_ptr(),
            count=update.weight.numel(),
            gradient_format=FORMATS[update.gradient.dtype],
            rounded_format=0 if rounded is None else FORMATS[rounded.dtype],
            factor=update.factor,
            divisor=divisor,
            sign=-1.0 if group["maximize"] else 1.0,
            decay=1 - rate * weight_decay if decoupled else 1.0,
            penalty=0.0 if decoupled else weight_decay,
            average_new=1 - beta1,
            square_kept=beta2,
            square_new=1 - beta2,
            correction=math.sqrt(1 - beta2**step),
            epsilon=group["eps"],
            step=-(rate / (1 - beta1**step)),
        )


def why_not(group: State) -> str | None:
    """In words, what native.cpp does not do of these settings; None: it does all of them."""
    if not group.get("fused"):
        return "the optimizer is not fused (fused=True)"
    for name in ("amsgrad", "capturable", "differentiable"):
        if group.get(name):
            return f"the optimizer has {name}=True"
    return None if float(group["betas"][0]) > 0.5 else "beta1 is not above 0.5"


def _layout(tensor: Tensor) -> tuple[object, ...]:
    """Equal for tensors whose elements follow each other in memory in the same order, without gaps."""
    places = [(stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    return (tensor.layout, tuple(tensor.shape), *places)


def has_fp16() -> bool:
    """Whether native.cpp can read and write fp16 on this processor."""
    library = native().library
    return library is not None and bool(library.tightship_has_fp16())


def one_pass_for(kind: type[Optimizer]) -> OnePass | str:
    """The one-pass update for an optimizer's class, or in words why there is none."""
    if kind not in _KINDS:
        return f"{kind.__name__} has no one-pass form"
    found = native()
    if found.library is None:
        return found.reason
    agreed = _agreeing(found.library, decoupled=kind is torch.optim.AdamW)
    return agreed if agreed is not None else f"torch {torch.__version__} rounds in another way on this processor"


@cache
def _agreeing(library: ctypes.CDLL, *, decoupled: bool) -> OnePass | None:
    """The likely ones first: vectors of 8, and what GCC fuses where it may."""
    weights = (0, 1) if decoupled else (1, 0)
    for weight, lanes, tail, square in product(weights, (8, 16, 4), (1, 2, 0), (2, 1, 0)):
        one = OnePass(library, _Rounding(square, tail, lanes, weight), decoupled=decoupled)
        if _agrees(one, adamw if decoupled else adam):
            return one
    return None


@torch.inference_mode(False)
@torch.no_grad()
def _agrees(one_pass: OnePass, by_torch: Callable[..., None]) -> bool:
    """Whether three steps give torch's bits."""
    generator = torch.Generator().manual_seed(1)
    tensors, size = _TRIED
    group = {"betas": (0.9, 0.999), "lr": 1e-2, "weight_decay": 0.1, "eps": 1e-8, "maximize": False, "fused": True}
    rule = {"amsgrad": False, "beta1": 0.9, "beta2": 0.999} | {k: v for k, v in group.items() if k != "betas"}

    def drawn() -> list[Tensor]:
        return list(torch.randn((tensors, size), generator=generator, dtype=torch.float32, device="cpu"))

    weights = drawn()
    zeros = [[torch.zeros_like(weight) for weight in weights] for _ in range(2)]
    mine = [weights, *zeros, [torch.zeros((), dtype=torch.float32, device="cpu") for _ in weights]]
    theirs = [[one.clone() for one in column] for column in mine]
    states = [dict(zip(("exp_avg", "exp_avg_sq", "step"), row, strict=True)) for row in zip(*mine[1:], strict=True)]
    for _ in range(3):
        gradients = drawn()
        rows = zip(mine[0], gradients, states, strict=True)
        if not one_pass.run([Update(weight=w, gradient=g, state=s, group=group) for w, g, s in rows], threads=1):
            return False
        weights, averages, squares, steps = theirs
        by_torch(weights, gradients, averages, squares, [], steps, **rule)
    pairs = zip(chain(*mine), chain(*theirs), strict=True)
    return all(one.equal(other) for one, other in pairs)
