"""The user's optimizer, with `step` handed to the engine: the same object, of a subclass of its own class.

Schedulers, scalers and hooks that hold the object go on working; so does `isinstance`. Copies and pickles of it are of
the user's class again.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, Protocol

import torch
from torch.optim import Optimizer

from tightship_offload.errors import OffloadError
from tightship_offload.runtime.masters import State


class Stepper(Protocol):
    """What stands behind a step."""

    def step(self, optimizer: Optimizer) -> None:
        """Start all updates."""
        ...

    def drain(self) -> None:
        """Wait until all updates are over."""
        ...

    def end_backward(self) -> None:
        """Gradients of a backward that failed are where the loop looks for them."""
        ...

    def loaded(self, saved: State) -> None:
        """The optimizer has loaded a state dict."""
        ...


def check_step(optimizer: Optimizer) -> None:
    """:raises OffloadError: something else than a learning rate scheduler has replaced `optimizer.step`."""
    replaced = optimizer.__dict__.get("step")
    if replaced is not None and not getattr(replaced, "_wrapped_by_lr_sched", False):
        raise OffloadError(
            f"step of this {type(optimizer).__name__} was replaced by {replaced!r:.100}; call apply before that"
        )


def take_over(optimizer: Optimizer, stepper: Stepper) -> None:
    """From now on `optimizer.step()` is the engine's."""
    kind = type(optimizer)
    replaced = optimizer.__dict__.pop("step", None)
    optimizer.__class__ = _subclass(kind, stepper)
    optimizer._patch_step_function()
    if replaced is not None:
        optimizer.step = _counted(optimizer)  # type: ignore[method-assign]


def give_back(optimizer: Optimizer) -> None:
    """The optimizer is of its own class again."""
    kind: type[Optimizer] | None = getattr(type(optimizer), "tightship_kind", None)
    if kind is not None:
        optimizer.__dict__.pop("step", None)
        optimizer.__class__ = kind


def _counted(optimizer: Optimizer) -> Callable[..., Any]:
    """As a learning rate scheduler wraps `step`, to see that it is called before the scheduler's."""
    step = MethodType(type(optimizer).step, optimizer)

    def counted(*args: Any, **kwargs: Any) -> Any:
        optimizer._opt_called = True  # type: ignore[attr-defined]
        return step(*args, **kwargs)

    counted._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return counted


def _blank(kind: type[Optimizer]) -> Optimizer:
    """What a copy or a pickle is filled into."""
    return object.__new__(kind)


def _subclass(kind: type[Optimizer], stepper: Stepper) -> type[Optimizer]:
    class Offloaded(kind):  # type: ignore[valid-type,misc]
        tightship_kind = kind

        def step(self, closure: Callable[[], Any] | None = None) -> Any:
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            stepper.step(self)
            return loss

        def zero_grad(self, set_to_none: bool = True) -> None:
            stepper.end_backward()
            if set_to_none:
                # An update on its way has its gradients in hand already: no reason to wait for it.
                with torch._C.DisableTorchFunctionSubclass():
                    super().zero_grad(set_to_none=True)
            else:
                super().zero_grad(set_to_none=False)

        def load_state_dict(self, state_dict: State) -> None:
            stepper.drain()
            super().load_state_dict(state_dict)
            stepper.loaded(state_dict)

        @property
        def state(self) -> Any:
            stepper.drain()
            return self.__dict__["state"]

        @state.setter
        def state(self, value: Any) -> None:
            stepper.drain()
            self.__dict__["state"] = value

        def __reduce_ex__(self, protocol: Any) -> Any:
            return _blank, (kind,), self.__getstate__()

    Offloaded.__name__, Offloaded.__qualname__, Offloaded.__doc__ = kind.__name__, kind.__qualname__, kind.__doc__
    Offloaded.__module__ = kind.__module__
    return Offloaded
