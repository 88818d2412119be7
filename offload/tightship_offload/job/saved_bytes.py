"""What autograd keeps of a forward, by layer: of a checkpointed layer, what it keeps while it is computed again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from tightship_offload.job.passages import OUTSIDE, Passage


class SavedBytes:
    """Of one forward and its backward. Each storage counts once, in the layer that keeps it first; weights do not."""

    def __init__(self, storage_of: Callable[[Tensor], int]) -> None:
        """:param storage_of: a number for a tensor's storage."""
        self.by_layer: defaultdict[int, int] = defaultdict(int)
        self.inputs: dict[int, int] = {}
        """Bytes of the floating-point tensors that a layer is given."""
        self.weights: set[int] = set()
        """Their storages."""
        self._storage_of = storage_of
        self._inside = OUTSIDE
        self._keepers: dict[int, int] = {}
        """By storage, the layer in which it was kept."""
        self._given: dict[int, tuple[int, ref[Tensor]]] = {}
        """By storage, the layer whose input it is."""
        self._recomputing: list[saved_tensors_hooks] = []

    def know(self, weights: Iterable[Tensor]) -> None:
        """Tell weights from what is kept of a forward."""
        self.weights = {self._storage_of(weight) for weight in weights}

    def passed(self, what: Passage, layer: int, given: Iterable[Tensor]) -> None:
        """The training comes to a layer, or leaves it."""
        match what:
            case Passage.FORWARD:
                self._enter(layer, given)
            case Passage.RETURNED:
                self._inside = OUTSIDE
            case Passage.RECOMPUTE:
                self._recompute(layer)
            case Passage.RECOMPUTED:
                while self._recomputing:
                    self._recomputing.pop().__exit__(None, None, None)

    def keep(self, tensor: Tensor) -> Tensor:
        """Autograd keeps a tensor. The same tensor."""
        storage = self._storage_of(tensor)
        if storage not in self._keepers and storage not in self.weights:
            self._keepers[storage] = self._inside
            self.by_layer[self._inside] += tensor.untyped_storage().nbytes()
        return tensor

    def end_forward(self) -> None:
        """All is kept. A checkpoint keeps a layer's input before the layer is entered, or after it is left."""
        for storage, (layer, tensor) in self._given.items():
            given = tensor()
            if given is not None and self._keepers.get(storage) == OUTSIDE:
                self.by_layer[OUTSIDE] -= given.untyped_storage().nbytes()
                self.by_layer[layer] += given.untyped_storage().nbytes()
        self._keepers.clear()
        self._given.clear()

    def _enter(self, layer: int, given: Iterable[Tensor]) -> None:
        self._inside = layer
        floats = [tensor for tensor in given if tensor.is_floating_point()]
        self.inputs.setdefault(layer, sum(tensor.numel() * tensor.element_size() for tensor in floats))
        self._given.update({self._storage_of(tensor): (layer, ref(tensor)) for tensor in floats})

    def _recompute(self, layer: int) -> None:
        """All that is kept while the layer is computed again, it keeps at once."""
        outer: Any = torch._C._autograd._top_saved_tensors_default_hooks(False)  # the checkpoint's own
        kept: dict[int, int] = {}

        def pack(tensor: Tensor) -> Any:
            storage = self._storage_of(tensor)
            if storage not in self.weights:
                kept[storage] = tensor.untyped_storage().nbytes()
                self.by_layer[layer] = max(self.by_layer[layer], sum(kept.values()))
            return tensor if outer is None else outer[0](tensor)

        hooks = saved_tensors_hooks(pack, (lambda tensor: tensor) if outer is None else outer[1])
        hooks.__enter__()
        self._recomputing.append(hooks)
