"""The slots: a fixed number of device buffers in which the moving layers take turns."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from tightship_offload.backends.base import Backend, Mark
from tightship_offload.runtime.layer import Layer


class Slot:
    """One device buffer, and which layer is in it or on the way to it."""

    def __init__(self, index: int, buffer: Tensor) -> None:
        self.index = index
        self.buffer = buffer
        self.layer: int | None = None
        self.arrived: Mark | None = None
        """The copy that brings the layer."""
        self.released: Mark | None = None
        """The computation that used the slot last."""
        self.holders = 0
        self.used_at = 0
        self.generation = 0
        self.versions = 0
        """Of the layer when its copy was asked for."""
        self._views: dict[int, list[Tensor]] = {}

    def views(self, layer: Layer) -> list[Tensor]:
        """The layer's parameters in this slot; made once."""
        found = self._views.get(layer.index)
        if found is None:
            found = self._views[layer.index] = [piece.of(self.buffer) for piece in layer.pieces]
        return found


def least_recently_used(free: list[Slot]) -> Slot:
    """An empty one, else the one whose layer's next use is farthest away in a backward that follows."""
    return min(free, key=lambda slot: (slot.layer is not None, slot.used_at))


class SlotPool:
    """Hands slots out."""

    def __init__(self, backend: Backend, sizes_bytes: list[int]) -> None:
        self.choose: Callable[[list[Slot]], Slot] = least_recently_used
        """Any choice is right; a good one saves copies."""
        self._slots = [Slot(index, backend.device_buffer(size)) for index, size in enumerate(sizes_bytes)]
        self._by_address = {slot.buffer.untyped_storage().data_ptr(): slot for slot in self._slots}
        self._by_layer: dict[int, Slot] = {}
        self._now = 0

    def of_layer(self, layer: int) -> Slot | None:
        """The slot in which the layer is, or to which it is on its way."""
        return self._by_layer.get(layer)

    def of_tensor(self, tensor: Tensor) -> Slot | None:
        """The slot that this tensor is a view of."""
        if tensor.layout is not torch.strided:
            return None
        return self._by_address.get(tensor.untyped_storage().data_ptr())

    def touch(self, slot: Slot) -> None:
        """It is in use now."""
        self._now += 1
        slot.used_at = self._now

    def take(self, layer: int, keep: Collection[int] = ()) -> Slot | None:
        """A slot for a layer, of those that nobody holds.

        :param keep: layers that must not be put out.
        """
        free = self._free(keep)
        if not free:
            return None
        slot = self.choose(free)
        self.empty(slot)
        slot.layer = layer
        self._by_layer[layer] = slot
        self.touch(slot)
        return slot

    def may_take(self, keep: Collection[int] = ()) -> bool:
        """Whether `take` would find one."""
        return bool(self._free(keep))

    def _free(self, keep: Collection[int]) -> list[Slot]:
        return [slot for slot in self._slots if not slot.holders and slot.layer not in keep]

    def empty(self, slot: Slot) -> None:
        """Its content counts no more."""
        if slot.layer is not None:
            del self._by_layer[slot.layer]
            slot.layer = None

    def empty_all(self) -> None:
        """The content of every slot that nobody holds counts no more."""
        for slot in self._slots:
            if not slot.holders:
                self.empty(slot)

    @property
    def size_bytes(self) -> int:
        """Device memory of all slots."""
        return sum(slot.buffer.numel() for slot in self._slots)
