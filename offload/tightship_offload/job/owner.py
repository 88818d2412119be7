"""Which model an optimizer trains, where only the optimizer is at hand."""

from __future__ import annotations

import gc
from collections.abc import Callable

from torch import nn
from torch.optim import Optimizer


def holders_of(optimizer: Optimizer) -> list[nn.Module]:
    """The modules that hold all parameters of an optimizer, the innermost first; none where they are no one module's.

    The innermost is called whenever one that wraps it is.
    """
    wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    holders = [one for one in gc.get_objects() if _is_module(one) and _parameters(one) >= wanted]
    # Several that are not part of each other share all parameters: it is unknown which of them the loop calls.
    innermost = [one for one in holders if not any(id(other) in _parts(one) for other in holders if other is not one)]
    return sorted(holders, key=lambda one: len(_parts(one))) if wanted and len(innermost) == 1 else []


def is_alive(wanted: Callable[[nn.Module], bool]) -> bool:
    """Whether there is such a module in the process."""
    return any(wanted(one) for one in gc.get_objects() if _is_module(one) and "_parameters" in one.__dict__)


def holder_of(part: nn.Module, wanted: Callable[[nn.Module], bool]) -> nn.Module | None:
    """The wanted module that this one is a part of."""
    alive = (one for one in gc.get_objects() if _is_module(one) and "_parameters" in one.__dict__)
    return next((one for one in alive if id(part) in _parts(one) and wanted(one)), None)


def _is_module(one: object) -> bool:
    # By its type: asking some objects for their class makes them act (proxies, deprecated names).
    return issubclass(type(one), nn.Module)


def _parameters(module: nn.Module) -> set[int]:
    return {id(parameter) for parameter in module.parameters()} if "_parameters" in module.__dict__ else set()


def _parts(module: nn.Module) -> set[int]:
    return {id(part) for part in module.modules()}
