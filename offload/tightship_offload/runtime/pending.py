"""Parameters whose update is still on its way: to touch one is to wait for it.

[Note: pending parameters] `optimizer.step()` returns before the updates are done. Until a layer's update is over, the
class of its parameters is `PendingParameter`: any use of one, by the loop, a hook, a logger, an average of the weights
or `state_dict`, first waits and turns the layer's parameters back into ordinary ones. So nobody ever reads a half
updated weight, and a loop that does not look has the overlap. The class changes on the spot, the object stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

_settlers: dict[int, Callable[[], None]] = {}
"""By id of a pending parameter, which lives as long as its layer does: waits, then makes it ordinary."""


class PendingParameter(nn.Parameter):
    """See the module."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        for parameter in _pending((args, kwargs or {})):
            _settlers[id(parameter)]()
        return func(*args, **(kwargs or {}))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        _settlers[id(self)]()
        return self.__deepcopy__(memo)  # an ordinary parameter's by now

    def __reduce_ex__(self, protocol: Any) -> Any:
        _settlers[id(self)]()
        return self.__reduce_ex__(protocol)


def _pending(value: Any) -> Iterator[PendingParameter]:
    if isinstance(value, torch.Tensor):
        if type(value) is PendingParameter:
            yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _pending(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _pending(item)


def make_pending(parameters: Iterable[nn.Parameter], settle: Callable[[], None]) -> None:
    """From now on any use of these parameters calls `settle` first, which must call `make_ordinary`."""
    for parameter in parameters:
        _settlers[id(parameter)] = settle
        parameter.__class__ = PendingParameter


def make_ordinary(parameters: Iterable[nn.Parameter]) -> None:
    """They are what they were."""
    for parameter in parameters:
        if type(parameter) is PendingParameter:
            parameter.__class__ = nn.Parameter  # type: ignore[assignment]
            _settlers.pop(id(parameter), None)


def may_be_pending(parameter: nn.Parameter) -> bool:
    """A class of its own may do anything with its layout or functions; it is not replaced."""
    return type(parameter) is nn.Parameter
