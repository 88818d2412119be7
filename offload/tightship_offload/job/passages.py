"""When a training comes to a layer and leaves it: in forward, in backward, and where backward repeats the forward.

A checkpoint that is reentrant runs the forward without a graph, so all that backward does to the layer is told from the
repeated forward; one that is not reentrant has its graph from the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any

from torch import Tensor, nn

from tightship_offload.runtime.blocks import Block
from tightship_offload.runtime.saved_tensors import Hook
from tightship_offload.runtime.window import graph_task

OUTSIDE = -1
"""In place of a layer's number: of no layer."""


class Passage(StrEnum):
    """What happens to a layer."""

    FORWARD = "layer forward"
    RETURNED = "layer returned"
    RECOMPUTE = "layer recompute"
    """Backward repeats its forward: the layer is checkpointed."""
    RECOMPUTED = "layer recomputed"
    """As far as backward needs it; backward goes on in the layer."""
    BACKWARD = "layer backward"
    BACKWARD_ENDED = "layer backward ended"


def watch(blocks: Sequence[Block], passed: Callable[[Passage, int, list[Tensor]], None]) -> list[Any]:
    """Hooks, as handles to remove them.

    :param passed: called with what happens, the layer's number, and the tensors that it is given, as a forward begins.
    """
    handles: list[Any] = []
    for number, block in enumerate(blocks):
        layer = _Layer(number, passed)
        handles.append(block.module.register_forward_pre_hook(Hook(layer.before), with_kwargs=True))
        handles.append(block.module.register_forward_hook(Hook(layer.after), always_call=True))
    return handles


class _Layer:
    """The hooks of one."""

    def __init__(self, number: int, passed: Callable[[Passage, int, list[Tensor]], None]) -> None:
        self._number = number
        self._passed = passed

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        given = list(tensors_in((args, kwargs)))
        self._passed(Passage.FORWARD if graph_task() == -1 else Passage.RECOMPUTE, self._number, given)
        self._when_known(given, Passage.BACKWARD_ENDED)

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        self._passed(Passage.RETURNED if graph_task() == -1 else Passage.RECOMPUTED, self._number, [])
        self._when_known(tensors_in(output), Passage.BACKWARD)

    def _when_known(self, tensors: Iterator[Tensor] | list[Tensor], what: Passage) -> None:
        """Backward has computed the gradient of the first of them that has one."""
        for tensor in tensors:
            if tensor.requires_grad and tensor.is_floating_point():
                tensor.register_hook(lambda _: self._passed(what, self._number, []))  # type: ignore[no-untyped-call]
                return


def tensors_in(value: Any, depth: int = 0) -> Iterator[Tensor]:
    """The tensors in nested lists, tuples and dictionaries, such as what a module is given or returns."""
    if isinstance(value, Tensor):
        yield value
    elif depth < 4 and isinstance(value, list | tuple):
        for one in value:
            yield from tensors_in(one, depth + 1)
    elif depth < 4 and isinstance(value, dict):
        for one in value.values():
            yield from tensors_in(one, depth + 1)
