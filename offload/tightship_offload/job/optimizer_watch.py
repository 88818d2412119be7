"""Meets models and optimizers in a script that knows nothing of us.

[Note: where a script is met] An optimizer is met when its construction is over: after the outermost `__init__` of its
class, whoever wrote that class. A model is met before it moves to the device, which an oversized one would not survive.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

_met: list[Callable[[Optimizer], None]] = []
_depth: dict[int, int] = {}


def on_optimizer(call: Callable[[Optimizer], None]) -> None:
    """From now on `call` gets every optimizer that is made."""
    if not _met:
        _wrap_all(Optimizer)
        Optimizer.__init_subclass__ = classmethod(_wrap_new)  # type: ignore[assignment, method-assign]
    _met.append(call)


Move = Callable[[nn.Module], nn.Module]
"""Moves a module as a script has moved it."""


def on_move(around: Callable[[nn.Module, Move], AbstractContextManager[object]]) -> None:
    """From now on a module moves to a device that is not the CPU within `around(module, move)`."""
    real_to, real_cuda = nn.Module.to, nn.Module.cuda

    @functools.wraps(real_to)
    def to(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        device, *_ = torch._C._nn._parse_to(*args, **kwargs)
        if device is None or device.type == "cpu":
            return real_to(self, *args, **kwargs)
        with around(self, lambda module: real_to(module, *args, **kwargs)):
            return real_to(self, *args, **kwargs)

    @functools.wraps(real_cuda)
    def cuda(self: nn.Module, device: Any = None) -> nn.Module:
        with around(self, lambda module: real_cuda(module, device)):
            return real_cuda(self, device)

    nn.Module.to = to  # type: ignore[method-assign, assignment]
    nn.Module.cuda = cuda  # type: ignore[method-assign, assignment]


def _wrap_all(kind: type[Optimizer]) -> None:
    _wrap(kind)
    for one in kind.__subclasses__():
        _wrap_all(one)


def _wrap_new(kind: type[Optimizer], /, **_: Any) -> None:
    _wrap(kind)


def _wrap(kind: type[Optimizer]) -> None:
    real = kind.__dict__.get("__init__")
    if real is None or getattr(real, "_tightship", False):
        return

    @functools.wraps(real)
    def init(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        key = id(self)
        _depth[key] = _depth.get(key, 0) + 1
        try:
            real(self, *args, **kwargs)
        finally:
            _depth[key] -= 1
            outermost = not _depth[key]
            if outermost:
                del _depth[key]
        if outermost:
            for call in _met:
                call(self)

    init._tightship = True  # type: ignore[attr-defined]
    kind.__init__ = init  # type: ignore[method-assign]
