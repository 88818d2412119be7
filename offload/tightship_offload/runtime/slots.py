"""The slots: a fixed number of blocks of device memory, which the moving layers hand to each other.

[Note: own storages] Each layer has a storage of its own on the device, and its parameters there are views of it, made
once. The storage is empty until the layer takes a slot: then the slot's block moves into it, out of the storage of the
layer that had the slot before. So whatever autograd, a `ctx` or a user's view keeps of a layer's weights is always that
layer's: used while the layer is on the device it is right, used too late it has no memory, and it never shows another
layer's weights. Blocks move in the h2d lane, in the order of the copies. (Storages that are filled and emptied are
FSDP2's, which allocates each time; that a block moves keeps memory at the slots' and allocates nothing.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import Tensor

from tightship_offload.backends.base import Backend, Mark
from tightship_offload.compat import move_block
from tightship_offload.runtime.layer import Layer


class Slot:
    """One block of device memory, and which layer is in it or on the way to it."""

    def __init__(self, index: int, block: Tensor) -> None:
        """:param block: device memory with a storage of its own, uint8 (size,)."""
        self.index = index
        self.size_bytes = block.numel()
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
        self._has_block = block

    def give(self, layer: Layer, slots: Collection[Slot]) -> None:
        """In the h2d lane: the block moves into the layer's storage.

        :param slots: all there are: the layer may still have the block of another one.
        """
        mine, before = layer.on_device, self._has_block
        if mine is before:
            return
        move_block(before, mine)
        for other in slots:
            if other._has_block is mine:
                other._has_block = before  # the two have changed blocks
        self._has_block = mine


def least_recently_used(free: list[Slot]) -> Slot:
    """An empty one, else the one whose layer's next use is farthest away in a backward that follows."""
    return min(free, key=lambda slot: (slot.layer is not None, slot.used_at))


class SlotPool:
    """Hands slots out."""

    def __init__(self, backend: Backend, sizes_bytes: list[int]) -> None:
        self.choose: Callable[[list[Slot]], Slot] = least_recently_used
        """Any choice is right; a good one saves copies."""
        self.slots = [Slot(index, backend.device_buffer(size)) for index, size in enumerate(sizes_bytes)]
        for slot in self.slots:  # what was queued before may still use memory that the device's allocator gave us
            slot.released = backend.mark("the work before apply")
        self._by_layer: dict[int, Slot] = {}
        self._now = 0

    def of_layer(self, layer: int) -> Slot | None:
        """The slot in which the layer is, or to which it is on its way."""
        return self._by_layer.get(layer)

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
        return [slot for slot in self.slots if not slot.holders and slot.layer not in keep]

    def empty(self, slot: Slot) -> None:
        """Its content counts no more."""
        if slot.layer is not None:
            del self._by_layer[slot.layer]
            slot.layer = None

    def empty_all(self) -> None:
        """The content of every slot that nobody holds counts no more."""
        for slot in self.slots:
            if not slot.holders:
                self.empty(slot)

    @property
    def size_bytes(self) -> int:
        """Device memory of all slots."""
        return sum(slot.size_bytes for slot in self.slots)
