"""The optimizer's work, layer by layer, on a thread of its own, in the order in which the next forward needs it.

[Note: part of an optimizer] A layer's update is the `step` of the user's own optimizer class on an object that shares
everything with the user's optimizer but its parameters: those of one layer (their shadows), with the settings that the
groups had when `step` was called, so that a scheduler which changes them next does not matter. Optimizers whose rule
is per parameter cannot tell the difference. One that keeps a running value in its groups can, and is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tightship_offload.backends.base import COMPUTE, Backend, Mark
from tightship_offload.errors import OffloadError
from tightship_offload.runtime.early_updates import EarlyUpdates, Undo, refusal
from tightship_offload.runtime.layer import Layer
from tightship_offload.runtime.nvme import NvmeStore
from tightship_offload.runtime.pending import make_ordinary, make_pending, may_be_pending
from tightship_offload.runtime.stats import OffloadStats

_NOT_PER_PARAMETER = (torch.optim.LBFGS, torch.optim.SparseAdam)


def bare_step(kind: type[Optimizer]) -> Callable[[Optimizer], Any]:
    """A class's `step` without the wrapper that runs hooks: they run once per step and not once per layer."""
    step: Any = kind.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step  # type: ignore[no-any-return]


def check_optimizer(optimizer: Optimizer) -> None:
    """:raises OffloadError: its rule is known to need all parameters at once."""
    if isinstance(optimizer, _NOT_PER_PARAMETER):
        raise OffloadError(
            f"{type(optimizer).__name__} cannot update one layer at a time; use AdamW(fused=True) or another optimizer "
            "whose rule is per parameter"
        )


class Updates:
    """Runs `optimizer.step()` for the moving layers, and for the rest."""

    def __init__(
        self,
        optimizer: Optimizer,
        layers: Sequence[Layer],
        backend: Backend,
        stats: OffloadStats,
        early: EarlyUpdates | None = None,
        store: NvmeStore | None = None,
    ) -> None:
        self._optimizer = optimizer
        self._kind = type(optimizer)
        self._step = bare_step(self._kind)
        self._backend = backend
        self._stats = stats
        self._lane = backend.lane("update", on_host=True)
        self._layers = {layer.index: layer for layer in layers}
        self._place = {id(p): (layer, at) for layer in layers for at, p in enumerate(layer.parameters)}
        self._pending: dict[int, Layer] = {}
        self._early = early
        self._store = store
        self._provisional: dict[int, _Work] = {}
        """Updates that started during backward and that `step` has not confirmed."""
        self._usual: dict[int, list[tuple[int, int]]] = {}
        """By layer, which parameters had gradients in the last step: (number of the group, place in the layer)."""
        self._undo: dict[int, Undo] = {}
        self._committed: Mark | None = None
        """The last step's commit to files."""
        self.taken_back = 0
        """Early updates that were undone since the start."""
        self.spent_ns = 0
        """Written by the lane alone."""
        self.on_updated: list[Callable[[str, list[nn.Parameter]], None]] = []
        """Called in the lane after a layer's update with its name and the updated (shadow) parameters."""

    # ---- at the step -----------------------------------------------------------------------------------------------

    def start(self, order: Sequence[int], rest_now: Callable[[], dict[str, Any]]) -> None:
        """Everything that `step` does after its hooks and its closure.

        :param rest_now: copies all that belongs to the training and does not move.
        """
        optimizer = self._optimizer
        settings = [_snapshot(group) for group in optimizer.param_groups]
        # A GradScaler that leaves unscaling to the optimizer gives it tensors that the device may still compute.
        scaled = optimizer.__dict__.get("found_inf") is not None
        here = self._backend.mark("optimizer.step()")
        rest: list[list[nn.Parameter]] = []
        parts: dict[int, list[tuple[int, int, Tensor]]] = {}
        with torch._C.DisableTorchFunctionSubclass():
            for number, group in enumerate(optimizer.param_groups):
                rest.append([])
                for parameter in group["params"]:
                    layer, at = self._place.get(id(parameter), (None, 0))
                    if layer is None:
                        rest[-1].append(parameter)
                    elif parameter.grad is not None:
                        parts.setdefault(layer.index, []).append((number, at, parameter.grad))
        self._usual = {index: [(number, at) for number, at, _ in part] for index, part in parts.items()}
        for index in order:
            if index in parts:
                work = _Work(parts[index], settings)
                if not self._confirm(self._layers[index], work, scaled=scaled):
                    self._run(self._layers[index], work, after=here)
        self._rest(rest)
        if self._store is not None:
            store, copied = self._store, rest_now()
            self._committed = self._lane.submit("the commit of the step to its files", lambda: store.commit(copied))

    def _confirm(self, layer: Layer, asked: _Work, *, scaled: bool) -> bool:
        """Whether a layer's early update was the one that `step` asks for now; otherwise it is taken back."""
        work = self._provisional.get(layer.index)
        if work is None:
            return False
        if (
            scaled
            or asked.places != work.places
            or not all(_same_settings(asked.settings[number], work.settings[number]) for number, _ in work.places)
        ):
            self.settle(layer)
            return False
        del self._provisional[layer.index]
        if self.on_updated:
            layer.updated = self._lane.submit(
                f"the update of layer {layer.name!r}", lambda: self._tell(layer, work), (layer.updated,)
            )
        return True

    def _rest(self, rest: list[list[nn.Parameter]]) -> None:
        """What does not move is updated at once, where it is."""
        optimizer = self._optimizer
        groups = [{**group, "params": part} for group, part in zip(optimizer.param_groups, rest, strict=True) if part]
        if groups:
            before = [_snapshot(group) for group in groups]
            self._step(self._part(groups, optimizer.__dict__["state"]))
            _unchanged(self._kind, groups, before)

    # ---- during backward -------------------------------------------------------------------------------------------

    def wants_early(self, backwards: int) -> bool:
        """Whether the backward that runs is the last one before a step. `backwards`: those that are over."""
        return self._early is not None and backwards == self._early.micro_batches - 1

    def start_early(self, layer: Layer, complete: Set[int], arrived: Mark) -> None:
        """Backward has left a layer whose gradients are on their way to the host.

        :param complete: places of the parameters that have all of their gradient.
        """
        usual = self._usual.get(layer.index)
        if usual is None or layer.index in self._provisional or not {at for _, at in usual} <= complete:
            return  # the first step shows what is usual; whatever is not is left to `step`
        if not all(may_be_pending(parameter) for parameter in layer.parameters):
            return
        assert layer.gradients is not None and self._early is not None
        settings = [_snapshot(group) for group in self._optimizer.param_groups]
        work = _Work([(number, at, layer.gradients[at]) for number, at in usual], settings)
        undo = self._undo.setdefault(layer.index, Undo()) if self._early.undo else None
        self._run(layer, work, undo, after=arrived, early=True)

    def _take_back(self, layer: Layer) -> None:
        del self._provisional[layer.index]
        undo = self._undo.get(layer.index)
        if undo is None:
            raise refusal(layer)
        if layer.copied is not None:  # the next forward's prefetch may have begun to read it
            self._backend.reach(layer.copied, COMPUTE, on_host=True)
        if self._backend.ledger:
            self._backend.ledger.write(COMPUTE, f"weights of {layer.name}")
        undo.give_back()
        layer.write_masters()
        layer.generation -= 1
        self.taken_back += 1

    # ---- a layer's update ------------------------------------------------------------------------------------------

    def _part(self, groups: list[dict[str, Any]], state: Any) -> Optimizer:
        part: Optimizer = object.__new__(self._kind)
        part.__dict__.update(self._optimizer.__dict__)
        part.__dict__.pop("step", None)
        part.__dict__.update(param_groups=groups, state=state)
        return part

    def _run(
        self, layer: Layer, work: _Work, undo: Undo | None = None, after: Mark | None = None, *, early: bool = False
    ) -> None:
        """Give a layer's update to the lane."""
        self.settle(layer)
        layer.read_masters()
        state: defaultdict[Tensor, Any] = self._optimizer.__dict__["state"]
        groups: dict[int, dict[str, Any]] = {}
        known: defaultdict[Tensor, Any] = defaultdict(dict)
        for number, at, _ in work.gradients:
            shadow = layer.shadows[at]
            groups.setdefault(number, {**work.settings[number], "params": []})["params"].append(shadow)
            if layer.parameters[at] in state:
                known[shadow] = state[layer.parameters[at]]
        part = self._part(list(groups.values()), known)
        before = [work.settings[number] for number in groups]

        def update() -> None:
            begun = self._backend.clock_ns()
            ledger = self._backend.ledger
            if ledger:
                ledger.read("update", f"gradients of {layer.name}")
                ledger.write("update", f"weights of {layer.name}")
            shadows = [layer.shadows[at] for _, at, _ in work.gradients]
            if self._store is not None:
                self._store.before(layer)
            if undo is not None:
                undo.take(shadows, [known[shadow] for shadow in shadows if shadow in known])
            for shadow, (_, _, gradient) in zip(shadows, work.gradients, strict=True):
                shadow.grad = gradient.to(shadow)  # itself where device and format are the shadow's
            self._step(part)
            for shadow, (_, at, _) in zip(shadows, work.gradients, strict=True):
                shadow.grad = None
                if shadow in known:
                    state[layer.parameters[at]] = known[shadow]
            if self._store is not None:
                self._store.after(layer, {at: known[layer.shadows[at]] for _, at, _ in work.gradients})
            _unchanged(self._kind, part.param_groups, before)
            layer.write_masters()
            if not early:
                self._tell(layer, work)
            self.spent_ns += self._backend.clock_ns() - begun

        layer.generation += 1
        what = f"the update of layer {layer.name!r}"
        layer.updated = self._lane.submit(what, update, (layer.updated, layer.copied, after))
        self._pending[layer.index] = layer
        if early:
            self._provisional[layer.index] = work
        if all(may_be_pending(parameter) for parameter in layer.parameters):
            make_pending(layer.parameters, lambda: self.settle(layer))
        else:
            self.settle(layer)

    def _tell(self, layer: Layer, work: _Work) -> None:
        for call in self.on_updated:
            call(layer.name, [layer.shadows[at] for _, at, _ in work.gradients])

    def settle(self, layer: Layer) -> None:
        """Wait until a layer's update is over; one that is not confirmed is taken back.

        :raises OffloadError: it has failed, did not end in time, or cannot be taken back.
        """
        if layer.index not in self._pending:
            return
        assert layer.updated is not None
        self._stats.wait_update_ns += self._backend.reach(layer.updated, COMPUTE, on_host=True)
        if self._backend.ledger:
            self._backend.ledger.read(COMPUTE, f"weights of {layer.name}")
        del self._pending[layer.index]
        make_ordinary(layer.parameters)
        if layer.index in self._provisional:
            self._take_back(layer)

    def settle_provisional(self) -> None:
        """Nothing may use the model before the step with what only the step makes valid."""
        for index in list(self._provisional):
            self.settle(self._layers[index])

    def forget(self) -> None:
        """Nobody will look at the parameters of updates on their way any more."""
        for layer in self._pending.values():
            make_ordinary(layer.parameters)

    def drain(self) -> None:
        """Wait until all updates are over."""
        for layer in list(self._pending.values()):
            self.settle(layer)
        if self._committed is not None:
            self._backend.reach(self._committed, COMPUTE, on_host=True)


@dataclass(frozen=True)
class _Work:
    """What one layer is updated with."""

    gradients: list[tuple[int, int, Tensor]]
    """(number of the group, place in the layer, gradient)"""
    settings: list[dict[str, Any]]
    """Of all groups."""

    @property
    def places(self) -> list[tuple[int, int]]:
        return [(number, at) for number, at, _ in self.gradients]


def _snapshot(group: dict[str, Any]) -> dict[str, Any]:
    """A group's settings as they are now; a learning rate may be a tensor that a scheduler fills anew."""
    return {
        key: value.clone() if isinstance(value, Tensor) else value for key, value in group.items() if key != "params"
    }


def _unchanged(kind: type[Optimizer], groups: Sequence[dict[str, Any]], before: Sequence[dict[str, Any]]) -> None:
    for group, old in zip(groups, before, strict=True):
        for key, value in group.items():
            if key != "params" and (key not in old or not _same(value, old[key])):
                raise OffloadError(
                    f"{kind.__name__} keeps {key!r} in its parameter groups as it steps, so it cannot update one layer "
                    "at a time; use an optimizer whose rule is per parameter"
                )


def _same_settings(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())


def _same(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)
    return a is b or bool(a == b)
