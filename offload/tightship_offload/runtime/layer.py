"""One layer's home in host memory: a slab of weights, a slab of gradients, and the parameters that are views of them.

[Note: homes] While a layer is not held, its parameters' `data` are views of the weights' slab: the model, its state
dict and its optimizer's are ordinary ones. While it is held, they are views of its storage on the device (see [Note:
own storages]). Gradients are views of the gradients' slab from the end of a backward until they are set to None.

[Note: shadows] The optimizer never updates the parameters themselves but their shadows: parameters of our own that
share the slab (or are the fp32 master of a 16-bit slab). So an update does not care where `data` points, and other
threads never touch an object that the user's loop can see.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tightship_offload.backends.base import Backend, Mark
from tightship_offload.errors import OffloadError
from tightship_offload.runtime.deferred_clip import DeferredClip
from tightship_offload.runtime.masters import MASTER, State, follow, wants_master

_ALIGN = 64
"""Bytes; a cache line, and more than any vector register asks for."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Where one tensor lies in a slab."""

    offset: int
    """In bytes, aligned."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def of(self, slab: Tensor) -> Tensor:
        """The tensor in this slab."""
        typed = slab.view(self.dtype)
        return torch.as_strided(typed, self.shape, self.stride, self.offset // self.dtype.itemsize)

    def alone(self, slab: Tensor) -> Tensor:
        """The same memory of a host slab under a storage of its own: files then see separate tensors."""
        size = max((1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))), 1)
        memory = (ctypes.c_uint8 * slab.numel()).from_address(slab.data_ptr())
        memory.slab = slab  # type: ignore[attr-defined]  # lives as long as the tensor
        typed = torch.frombuffer(memory, dtype=self.dtype, count=size, offset=self.offset)
        return torch.as_strided(typed, self.shape, self.stride)


def lay_out(tensors: list[Tensor]) -> tuple[list[Piece], int]:
    """Pieces for tensors in a row, and the bytes they take together. Dense strides (channels_last) are kept."""
    pieces: list[Piece] = []
    offset = 0
    for tensor in tensors:
        stride = tensor.stride() if _is_dense(tensor) else torch.empty(tensor.shape, device="meta").stride()
        pieces.append(Piece(offset, tensor.dtype, tuple(tensor.shape), tuple(stride)))
        offset += -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
    return pieces, max(offset, _ALIGN)


def _is_dense(tensor: Tensor) -> bool:
    """Whether its elements fill one range of memory, each once."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


class Layer:
    """See the module."""

    def __init__(
        self, index: int, name: str, module: nn.Module, parameters: tuple[nn.Parameter, ...], *, master: bool
    ) -> None:
        """:param master: 16-bit parameters are updated as fp32 copies, which stay in host memory."""
        for parameter in parameters:
            if parameter.layout is not torch.strided or isinstance(parameter, nn.UninitializedParameter):
                raise OffloadError(
                    f"A parameter of layer {name!r} is sparse or not initialised yet; run the model once before apply, "
                    "or leave this layer out of layers"
                )
        self.index = index
        self.name = name
        self.module = module
        self.parameters = parameters
        self.pieces, self.size_bytes = lay_out([p.detach() for p in parameters])
        self._master = master
        self.updated: Mark | None = None
        """The update that the parameters' values wait for."""
        self.copied: Mark | None = None
        """The last copy to the device, which an update must not overtake: the layer may never have been entered."""
        self.generation = 0
        """Counts updates: what was computed with older weights must not be continued with newer ones."""
        self.gradients: list[Tensor] | None = None
        """Views of the gradients' slab; of a frozen layer, made when its first gradient arrives."""
        self.clip: DeferredClip | None = None
        """What clipping has left to the update."""
        self.squares: dict[int, float | Tensor | None] = {}
        """By place, the sum of squares of a gradient that nobody has touched since it arrived."""
        self.masters: list[Tensor | None] = [None] * len(parameters)
        self.weights = torch.empty(0)
        self.views: list[Tensor] = []
        """The parameters in host memory."""
        self.on_device = torch.empty(0)
        """All of the layer on the device, uint8; its storage has memory while the layer has a slot."""
        self.device_views: list[Tensor] = []
        self.shadows: list[nn.Parameter] = []
        wanted = {id(p) for p in parameters}
        found = {
            id(p): (owner, name)
            for owner in module.modules()
            for name, p in owner._parameters.items()
            if p is not None and id(p) in wanted
        }
        self._owners = [found[id(p)] for p in parameters]
        self._cast_at: list[int] = [-1] * len(parameters)

    def take_memory(self, backend: Backend, slab: Tensor | None = None) -> None:
        """All that a training needs, while nothing has changed yet.

        :param slab: of the weights, in host memory; None: allocate it.
        :raises OffloadError: there is not enough.
        """
        self.weights = backend.host_buffer(self.size_bytes) if slab is None else slab
        if any(parameter.requires_grad for parameter in self.parameters):
            self._take_gradients(backend)
        self.on_device = backend.device_buffer(self.size_bytes)
        self.device_views = [piece.of(self.on_device) for piece in self.pieces]
        self.on_device.untyped_storage().resize_(0)  # it gets memory with a slot

    def move_in(self, *, keep: bool = False) -> None:
        """Copy the parameters into the slab and point them there.

        :param keep: what is in the slab counts, not what the parameters are.
        """
        self.views = [piece.alone(self.weights) for piece in self.pieces]
        for at, (parameter, view) in enumerate(zip(self.parameters, self.views, strict=True)):
            if not keep:
                view.copy_(parameter.detach())
            if self.wants_master(parameter):
                self.masters[at] = view.float()
            updated = self.masters[at]
            shadow = nn.Parameter(view if updated is None else updated, requires_grad=parameter.requires_grad)
            self.shadows.append(shadow)
        self.point_home()
        self.note_versions()

    def is_part(self, tensor: Tensor) -> bool:
        """Whether this tensor is a view of the layer's weights on the device. Only while they are there."""
        if tensor.layout is not torch.strided:
            return False
        return tensor.untyped_storage().data_ptr() == self.on_device.untyped_storage().data_ptr()

    def wants_master(self, parameter: nn.Parameter) -> bool:
        """Whether it is updated as an fp32 copy."""
        return self._master and wants_master(parameter)

    @property
    def state(self) -> tuple[int, int]:
        """Of the weights: changes with an update, and when somebody changes a parameter in place."""
        with torch._C.DisableTorchFunctionSubclass():  # an update on its way is no reason to wait
            return self.generation, sum(parameter._version for parameter in self.parameters)

    def check_home(self) -> None:
        """:raises OffloadError: somebody has replaced a parameter, or moved it, since apply."""
        for (owner, name), parameter, view in zip(self._owners, self.parameters, self.views, strict=True):
            if owner._parameters.get(name) is not parameter or parameter.data_ptr() != view.data_ptr():
                raise OffloadError(
                    f"Parameter {name!r} of layer {self.name!r} was replaced or moved after apply; do so before it, or "
                    "write into it in place (with torch.no_grad())"
                )

    def point_home(self) -> None:
        """The parameters are views of host memory."""
        self.point_at(self.views)

    def point_at(self, views: list[Tensor]) -> None:
        """The parameters are these tensors."""
        for parameter, view in zip(self.parameters, views, strict=True):
            parameter.data = view

    def gradient(self, at: int, backend: Backend) -> Tensor:
        """Where the gradient of a parameter lies on the host."""
        return (self.gradients or self._take_gradients(backend))[at]

    def _take_gradients(self, backend: Backend) -> list[Tensor]:
        slab = backend.host_buffer(self.size_bytes)
        self.gradients = [piece.alone(slab) for piece in self.pieces]
        return self.gradients

    def read_masters(self) -> None:
        """Take over what somebody wrote into 16-bit parameters since the last update (a loaded state dict)."""
        for at, (parameter, master) in enumerate(zip(self.parameters, self.masters, strict=True)):
            if master is not None and parameter._version != self._cast_at[at]:
                follow(master, self.views[at])
                self._cast_at[at] = parameter._version

    def keep_master(self, at: int, state: State) -> None:
        """Put a parameter's master into the optimizer's state of it."""
        master = self.masters[at]
        if master is not None:
            state[MASTER] = master

    def doubt(self, at: int) -> None:
        """Compare a parameter with its master before the next update."""
        self._cast_at[at] = -1

    def note_versions(self) -> None:
        """What is in the parameters now comes from the masters."""
        self._cast_at = [parameter._version for parameter in self.parameters]

    def write_masters(self) -> None:
        """Round the fp32 masters into the 16-bit slab."""
        for view, master in zip(self.views, self.masters, strict=True):
            if master is not None:
                view.copy_(master)
