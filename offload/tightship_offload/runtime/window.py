"""The window: which layers are on the device, when they come and when they go.

[Note: when a layer is held] In forward a layer is held from the call of its module to the return. In backward it is
held from the first contact (the gradient of its output, a saved tensor, a recomputation) to the first contact with
another layer or the end. That is long enough: autograd runs the nodes of one device in the reverse of the order in
which they were made (a node that is ready runs before all that are older), and layers do not overlap in forward. A
recomputation of several layers (a checkpointed segment) holds one of them beside the one that is in backward; so two
slots suffice.

[Note: which content counts] A slot's content counts from its copy until its layer has had its backward, the next
forward of the whole model begins, or the layer is updated. So whatever the loop does to parameters between two forwards
is seen, and between forward and backward there is no copy that could be out of date.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

import torch

from tightship_offload.backends.base import COMPUTE, Backend
from tightship_offload.errors import OffloadError
from tightship_offload.runtime.layer import Layer
from tightship_offload.runtime.slots import Slot, SlotPool
from tightship_offload.runtime.stalls import Stalls
from tightship_offload.runtime.stats import OffloadStats


def graph_task() -> int:
    """The backward that runs on this thread, or -1."""
    return int(torch._C._current_graph_task_id())


class Window:
    """See the module. Used by one thread at a time: the user's, or autograd's while the user's waits in backward."""

    def __init__(
        self,
        layers: Sequence[Layer],
        backend: Backend,
        pool: SlotPool,
        *,
        prefetch: int,
        stats: OffloadStats,
        stalls: Stalls,
        settle: Callable[[Layer], None],
    ) -> None:
        """:param settle: called before a layer's parameters are pointed anywhere; waits for its update."""
        self._layers = {layer.index: layer for layer in layers}
        self._backend = backend
        self.pool = pool
        self._prefetch = prefetch
        self._stats = stats
        self._stalls = stalls
        self._settle = settle
        self._h2d = backend.lane("h2d")
        order = [layer.index for layer in layers]
        self._next = dict(itertools.pairwise(order))
        self._previous = {b: a for a, b in self._next.items()}
        self._first: int | None = order[0] if order else None
        self._last_entered: int | None = None
        self.backward_task = -1
        self._in_backward: int | None = None
        self.entered: Counter[int] = Counter()
        """How often forward has come to each layer since the last backward, where it records a graph."""
        self.was_entered = False
        """Whether forward has ever come to a layer."""
        self._starved: set[int] = set()
        """Layers that were not fetched ahead for want of a slot."""
        self.read_ahead: Callable[[list[int]], None] | None = None
        """Told in the h2d lane which layers come next."""
        self.on_backward_end: Callable[[], None] = lambda: None
        self.on_layer_left: Callable[[int], None] = lambda layer: None

    # ---- forward ---------------------------------------------------------------------------------------------------

    def begin_forward(self) -> None:
        """The whole model is called."""
        if graph_task() != -1:
            return
        self.abandon_backward()
        self.pool.empty_all()
        self._last_entered = None
        if self._first is not None:
            self._fetch_ahead(self._first, self._next, including=True)

    def end_forward(self) -> None:
        """The whole model has returned."""
        if graph_task() == -1:
            self._last_entered = None

    def enter_forward(self, index: int) -> None:
        """A layer's module is called."""
        if graph_task() != -1:
            self.begin_backward()
            self._hold(index)
            return
        self.abandon_backward()
        self.entered[index] += torch.is_grad_enabled()
        self._learn(index)
        self._hold(index)
        self._fetch_ahead(index, self._next)

    def leave_forward(self, index: int) -> None:
        """A layer's module has returned."""
        self._drop(index)

    def _learn(self, index: int) -> None:
        """Layers may run in another order than they are registered; the last forward's order is the next one's."""
        last = self._last_entered
        if last is None:
            self._first = index
        elif last != index:
            self._next[last] = index
            self._previous[index] = last
        self._last_entered = index

    @property
    def order(self) -> list[int]:
        """The moving layers in the order in which the next forward needs them."""
        found: dict[int, None] = {}
        at = self._first
        while at is not None and at not in found:
            found[at] = None
            at = self._next.get(at)
        return [*found, *(index for index in self._layers if index not in found)]

    # ---- backward --------------------------------------------------------------------------------------------------

    def begin_backward(self) -> None:
        """Something of ours runs in a backward; does nothing but for the first time."""
        task = graph_task()
        if self.backward_task != -1 or task == -1:
            return
        self.backward_task = task
        torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)

    def enter_backward(self, index: int) -> None:
        """A layer's backward goes on: its weights are on the device."""
        self.begin_backward()
        if self._in_backward != index:
            self._leave_backward()
            self._hold(index)
            self._in_backward = index
            self._fetch_ahead(index, self._previous)

    def _leave_backward(self) -> None:
        index, self._in_backward = self._in_backward, None
        if index is None:
            return
        self._drop(index)
        slot = self.pool.of_layer(index)
        if slot is not None and not slot.holders:
            self.pool.empty(slot)
        self.on_layer_left(index)

    def _end_backward(self) -> None:
        self._leave_backward()
        self.backward_task = -1
        self.on_backward_end()
        self.entered.clear()

    def abandon_backward(self) -> None:
        """Called outside of any backward: one that failed has not told us its end."""
        if self.backward_task != -1 and graph_task() == -1:
            self._end_backward()

    # ---- slots -----------------------------------------------------------------------------------------------------

    def _hold(self, index: int) -> None:
        """Wait until a layer is on the device and point its parameters there."""
        layer = self._layers[index]
        self.was_entered = True
        self._settle(layer)
        slot = self.pool.of_layer(index)
        if slot is not None and not slot.holders and (slot.generation, slot.versions) != layer.state:
            self.pool.empty(slot)
            slot = None
        if slot is None:
            self._stats.misses += 1
            slot = self._fetch(layer)
        self.pool.touch(slot)
        if not slot.holders:
            self._wait_for(slot, layer)
            layer.check_home()
            layer.point_at(layer.device_views)
        slot.holders += 1
        if self._backend.ledger:
            self._backend.ledger.read(COMPUTE, f"slot {slot.index}")

    def _drop(self, index: int) -> None:
        slot = self.pool.of_layer(index)
        if slot is None or not slot.holders:
            return
        slot.holders -= 1
        if not slot.holders:
            if self._backend.ledger:
                self._backend.ledger.read(COMPUTE, f"slot {slot.index}")
            slot.released = self._backend.mark(f"the computation of layer {index}")
            self._layers[index].point_home()

    def _wait_for(self, slot: Slot, layer: Layer) -> None:
        assert slot.arrived is not None
        cause = "wait_slot_ns" if layer.index in self._starved else "wait_h2d_ns"
        self._starved.discard(layer.index)
        self._stalls.reach(cause, slot.arrived, on_host=False)

    def _fetch_ahead(self, index: int, following: dict[int, int], *, including: bool = False) -> None:
        wanted = self._chain(index, following, self._prefetch)
        for ahead in wanted if including else wanted[1:]:
            if self.pool.of_layer(ahead) is not None:
                continue
            if not self.pool.may_take(wanted):
                self._starved.add(ahead)
                return
            self._fetch(self._layers[ahead], keep=wanted)

    @staticmethod
    def _chain(index: int, following: dict[int, int], most: int) -> list[int]:
        """A layer and up to so many that come after it."""
        found = [index]
        while len(found) <= most and found[-1] in following and following[found[-1]] not in found:
            found.append(following[found[-1]])
        return found

    def _fetch(self, layer: Layer, keep: Sequence[int] = ()) -> Slot:
        """Ask for a layer's copy into a slot."""
        slot = self.pool.take(layer.index, keep)
        if slot is None:
            raise OffloadError(
                f"No slot is left for layer {layer.name!r}: every slot is held; layers must not call each other, "
                "name only the outer ones in layers"
            )
        slot.generation, slot.versions = layer.state
        slot.arrived = self._h2d.submit(
            f"layer {layer.name!r} to arrive on the device", self._copy_in(layer, slot), (slot.released, layer.updated)
        )
        layer.copied = slot.arrived
        self._stats.fetches += 1
        self._stats.h2d_bytes += layer.size_bytes
        return slot

    def _copy_in(self, layer: Layer, slot: Slot) -> Callable[[], None]:
        following = self._next if graph_task() == -1 else self._previous
        coming = [] if self.read_ahead is None else self._chain(layer.index, following, len(self._layers))[1:]

        def copy() -> None:
            ledger = self._backend.ledger
            if ledger:
                ledger.read("h2d", f"weights of {layer.name}")
                ledger.write("h2d", f"slot {slot.index}")
            if self.read_ahead:
                self.read_ahead(coming)
            slot.give(layer, self.pool.slots)
            self._backend.abandon(layer.on_device)
            layer.on_device.copy_(layer.weights, non_blocking=True)

        return copy
