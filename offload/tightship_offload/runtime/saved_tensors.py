"""What a layer's module gets as hooks, and how backward finds the way back to a layer.

[Note: saved tensors] Autograd saves weights for backward as views of the layer's own storage on the device, which has
no memory while the layer is away. So while a layer is held in forward, saved tensors pass through hooks that remember
whose they are: when backward asks for one, the layer comes first. Anything else goes to the hooks that were in force
around the layer (those of a non-reentrant checkpoint), which ours would otherwise hide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tightship_offload.errors import OffloadError
from tightship_offload.runtime.layer import Layer
from tightship_offload.runtime.window import Window, graph_task


@dataclass(frozen=True, slots=True)
class _Weight:
    """A view of the layer's weights on the device."""

    layer: Layer
    tensor: Tensor
    version: int
    generation: int
    """Of tensor and layer when it was saved."""


@dataclass(frozen=True, slots=True)
class _Outer:
    """What the hooks around the layer made of a tensor."""

    packed: Any
    unpack: Callable[[Any], Tensor]


class LayerHooks:
    """The forward hooks of one layer's module. A copy of the module gets none: it is an ordinary model."""

    def __init__(self, layer: Layer, window: Window, arm: Callable[[Layer], None]) -> None:
        """:param arm: called each time before the layer computes, when its parameters may be looked at."""
        self._layer = layer
        self._arm = arm
        self._window = window
        self._entered: list[torch.autograd.graph.saved_tensors_hooks] = []
        self._recomputed = False
        self._handles = [
            layer.module.register_forward_pre_hook(Hook(self.before), prepend=True),
            layer.module.register_forward_hook(Hook(self.after), always_call=True),
        ]

    def remove(self) -> None:
        """The module is as it was."""
        for handle in self._handles:
            handle.remove()

    def before(self, module: nn.Module, args: Any) -> None:
        """The module is called."""
        self._window.enter_forward(self._layer.index)
        self._arm(self._layer)
        # ignore_is_tracing: False, as autograd asks for it itself
        outer: Any = torch._C._autograd._top_saved_tensors_default_hooks(False)
        self._recomputed = outer is not None or not torch.is_grad_enabled()
        hooks = torch.autograd.graph.saved_tensors_hooks(self._packer(outer), self._unpack)
        hooks.__enter__()
        self._entered.append(hooks)

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        """The module has returned, or failed."""
        if not self._entered:
            return
        self._entered.pop().__exit__(None, None, None)
        try:
            for tensor in _tensors(output):
                if self._layer.is_part(tensor):
                    raise OffloadError(
                        f"Layer {self._layer.name!r} returns one of its own parameters, which leaves the device with "
                        f"it; make layer {self._layer.index} resident"
                    )
                if tensor.requires_grad and tensor.grad_fn is not None:
                    tensor.register_hook(self._reached)  # type: ignore[no-untyped-call]
        finally:
            if self._recomputed:  # autocast keeps 16-bit copies of all weights, which a checkpoint is to spare
                torch.clear_autocast_cache()
            self._window.leave_forward(self._layer.index)

    def abandon(self) -> None:
        """A forward was left by an exception that hooks do not see (KeyboardInterrupt)."""
        while self._entered:
            self._entered.pop().__exit__(None, None, None)
            self._window.leave_forward(self._layer.index)

    def _reached(self, gradient: Tensor) -> None:
        """Backward has come to the layer's output."""
        if graph_task() != -1:
            self._window.enter_backward(self._layer.index)

    def _packer(self, outer: Any) -> Callable[[Tensor], Any]:
        def pack(tensor: Tensor) -> Any:
            if self._layer.is_part(tensor):
                return _Weight(self._layer, tensor, tensor._version, self._layer.generation)
            return tensor if outer is None else _Outer(outer[0](tensor), outer[1])

        return pack

    def _unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        if isinstance(packed, _Outer):
            return packed.unpack(packed.packed)
        weight: _Weight = packed
        layer = weight.layer
        if graph_task() == -1:
            raise OffloadError(
                f"The saved weights of layer {layer.name!r} are not on the device outside of backward; make layer "
                f"{layer.index} resident to look at its graph"
            )
        if (weight.tensor._version, weight.generation) != (weight.version, layer.generation):
            raise OffloadError(
                f"The weights of layer {layer.name!r} were changed between forward and backward; call backward "
                "before optimizer.step(), and change no parameter in between"
            )
        if torch.is_grad_enabled():
            raise OffloadError(
                f"Backward with create_graph=True reaches layer {layer.name!r}, whose weights move; make layer "
                f"{layer.index} resident"
            )
        self._window.enter_backward(layer.index)
        return weight.tensor


class Hook:
    """A bound method as a hook that copies and pickles of a module do without, and torch.compile goes around."""

    def __init__(self, call: Callable[..., None]) -> None:
        # Not as a decorator: that would load the compiler with this module. An optimizer has loaded it by now.
        self._call = torch.compiler.disable(call)  # type: ignore[no-untyped-call]

    def __call__(self, *args: Any) -> None:
        self._call(*args)

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return _nothing, ()


def _nothing() -> Callable[..., None]:
    return _do_nothing


def _do_nothing(*args: Any) -> None:
    """The hook of a copied module."""


def _tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in what a module returns."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _tensors(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for item in fields(value):
            yield from _tensors(getattr(value, item.name))
