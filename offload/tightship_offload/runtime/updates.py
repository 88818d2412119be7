"""The optimizer's work, layer by layer, in its own lane, in the order in which the next forward needs it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tightship_offload.backends.base import COMPUTE, Backend, Mark
from tightship_offload.plan.model import UpdateOrder
from tightship_offload.runtime.deferred_clip import DeferredClip
from tightship_offload.runtime.early_updates import EarlyUpdates, Undo, refusal
from tightship_offload.runtime.layer import Layer
from tightship_offload.runtime.layer_update import LayerUpdate, Work
from tightship_offload.runtime.masters import MASTER, RestMasters, State, narrow, restore, widen
from tightship_offload.runtime.nvme import NvmeStore
from tightship_offload.runtime.one_pass import OnePass, one_pass_for, why_not
from tightship_offload.runtime.part_of_optimizer import (
    as_fused,
    bare_step,
    is_open,
    part_of,
    same_settings,
    snapshot,
    unchanged,
)
from tightship_offload.runtime.pending import make_ordinary, make_pending, may_be_pending
from tightship_offload.runtime.stalls import Stalls
from tightship_offload.runtime.update_lane import open_lane, threads_for


class Updates:
    """Runs `optimizer.step()` for the moving layers, and for the rest."""

    def __init__(
        self,
        optimizer: Optimizer,
        layers: Sequence[Layer],
        backend: Backend,
        stalls: Stalls,
        early: EarlyUpdates | None = None,
        store: NvmeStore | None = None,
        masters: RestMasters | None = None,
        *,
        order: UpdateOrder = UpdateOrder.NEXT_USE,
        threads: int | None = None,
        fused: bool = False,
    ) -> None:
        """:param masters: of what does not move; None: it is updated as it is.
        :param order: of updates that are ready.
        :param fused: layers take the optimizer's fused form where its settings leave the form open.
        :param threads: see `threads_for`.
        :raises OffloadError: there are fewer cores than threads are asked for.
        """
        self._optimizer = optimizer
        self._kind = type(optimizer)
        self._step = bare_step(self._kind)
        self._form: Callable[[State], State] = as_fused if fused else lambda settings: settings
        self._backend = backend
        self._stalls = stalls
        self._threads = threads_for(threads, on_cpu=backend.device.type == "cpu")
        self._lane = open_lane(backend, self._threads)
        self._by_use = order is UpdateOrder.NEXT_USE
        self._places: dict[int, int] = {}
        """By layer, which one the next forward needs first."""
        self._layers = {layer.index: layer for layer in layers}
        self._rest_masters = masters or RestMasters(())
        self._place = {id(p): (layer, at) for layer in layers for at, p in enumerate(layer.parameters)}
        self._pending: dict[int, Layer] = {}
        self._early = early
        self._store = store
        self._provisional: dict[int, Work] = {}
        """Updates that started during backward and that `step` has not confirmed."""
        self._usual: dict[int, list[tuple[int, int]]] = {}
        """By layer, which parameters had gradients in the last step: (number of the group, place in the layer)."""
        self._undo: dict[int, Undo] = {}
        self._committed: Mark | None = None
        """The last step's commit to files."""
        has_masters = any(master is not None for layer in layers for master in layer.masters)
        self._one_pass = one_pass_for(self._kind) if has_masters else None
        """The one-pass update, or why there is none; None: torch's own takes one pass, too."""
        self.taken_back = 0
        """Early updates that were undone since the start."""
        self.spent_ns = 0
        """Written by the lane alone, as is `in_one_pass`."""
        self.in_one_pass: set[int] = set()
        """Layers whose last update took one pass over memory where torch's takes several."""
        self.on_updated: list[Callable[[str, list[nn.Parameter]], None]] = []
        """Called in the lane after a layer's update with its name and the updated (shadow) parameters."""

    # ---- at the step -----------------------------------------------------------------------------------------------

    def start(self, order: Sequence[int], rest_now: Callable[[], State]) -> None:
        """Everything that `step` does after its hooks and its closure.

        :param rest_now: all that belongs to the training and does not move.
        """
        optimizer = self._optimizer
        settings = self._settings()
        # The device may still compute these. To read them is to wait; torch's own kernel would not.
        given = {name: optimizer.__dict__.get(name) for name in ("grad_scale", "found_inf")}
        scaling = {name: value.cpu() for name, value in given.items() if isinstance(value, Tensor)}
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
        self._places = {index: place for place, index in enumerate(order)} if self._by_use else {}
        for index in order if self._by_use else reversed(order):
            if index in parts:
                work = Work(parts[index], settings)
                if not self._confirm(self._layers[index], work, scaled="found_inf" in scaling):
                    self._run(self._layers[index], work, after=here, scaling=scaling)
        self._rest(rest)
        if self._store is not None:
            if self._committed is not None:
                self._stalls.reach("wait_update_ns", self._committed, on_host=True)
            self._store.write_rest(rest_now())
            all_of_it = [self._committed, *(layer.updated for layer in self._layers.values())]
            self._committed = self._lane.submit(
                "the commit of the step to its files", self._store.commit, all_of_it, place=len(order)
            )

    def _settings(self) -> list[State]:
        """Of all groups, as layers are updated with them now."""
        return [self._form(snapshot(group)) for group in self._optimizer.param_groups]

    def _confirm(self, layer: Layer, asked: Work, *, scaled: bool) -> bool:
        """Whether a layer's early update was the one that `step` asks for now; otherwise it is taken back."""
        work = self._provisional.get(layer.index)
        if work is None:
            return False
        if (
            scaled
            or asked.places != work.places
            or not all(same_settings(asked.settings[number], work.settings[number]) for number, _ in work.places)
        ):
            self.settle(layer)
            return False
        del self._provisional[layer.index]
        if self.on_updated:
            layer.updated = self._submit(layer, lambda: self._tell(layer, work), layer.updated)
        return True

    def _rest(self, rest: list[list[nn.Parameter]]) -> None:
        """What does not move is updated at once, where it is."""
        optimizer, masters = self._optimizer, self._rest_masters
        state: defaultdict[Tensor, Any] = optimizer.__dict__["state"]
        updated = [(p, m) for part in rest for p in part if (m := masters.read(p)) is not None]
        for parameter, master in updated:
            if parameter in state:
                state[master] = _without_master(state.pop(parameter))
        groups = [
            {**group, "params": [p if (m := masters.of(p)) is None else m for p in part]}
            for group, part in zip(optimizer.param_groups, rest, strict=True)
            if part
        ]
        if not groups:
            return
        before = [snapshot(group) for group in groups]
        try:
            self._step(part_of(optimizer, self._kind, groups, state))
        finally:
            for parameter, master in updated:
                if parameter.grad is not None or master in state:
                    state[parameter] = state.pop(master, {}) | {MASTER: master.detach()}
                masters.write(parameter)
        unchanged(self._kind, groups, before)

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
        work = Work([(number, at, layer.gradients[at]) for number, at in usual], self._settings())
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
        for at, parameter in enumerate(layer.parameters):
            if parameter in self._optimizer.__dict__["state"]:
                layer.keep_master(at, self._optimizer.__dict__["state"][parameter])
        layer.generation -= 1
        self.taken_back += 1

    # ---- a layer's update ------------------------------------------------------------------------------------------

    def _run(
        self,
        layer: Layer,
        work: Work,
        undo: Undo | None = None,
        after: Mark | None = None,
        *,
        early: bool = False,
        scaling: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Give a layer's update to the lane.

        :param scaling: what a GradScaler that leaves unscaling to the optimizer has given it, in host memory.
        """
        clip, layer.clip = layer.clip, None  # to update is no reason to write the factor into the gradients
        self.settle(layer)
        make_ordinary(layer.parameters)
        layer.read_masters()
        state: defaultdict[Tensor, Any] = self._optimizer.__dict__["state"]
        groups: dict[int, State] = {}
        known: defaultdict[Tensor, Any] = defaultdict(dict)
        for number, at, _ in work.gradients:
            shadow = layer.shadows[at]
            groups.setdefault(number, {**work.settings[number], "params": []})["params"].append(shadow)
            if layer.parameters[at] in state:
                known[shadow] = _without_master(state[layer.parameters[at]])
        part = part_of(self._optimizer, self._kind, list(groups.values()), known)
        part.__dict__.update(scaling or {})
        before = [work.settings[number] for number in groups]
        one = LayerUpdate(
            layer=layer,
            work=work,
            part=part,
            step=self._step,
            state=known,
            clip=clip,
            scaling=scaling or {},
            threads=self._threads,
        )
        one_pass = self._one_pass_of(layer, clip)

        def update() -> None:
            begun = self._backend.clock_ns()
            ledger = self._backend.ledger
            if ledger:
                (ledger.read if clip is None else ledger.write)("update", f"gradients of {layer.name}")
                ledger.write("update", f"weights of {layer.name}")
            if self._store is not None:
                self._store.before(layer)
            if undo is not None:
                undo.take(one.shadows, [known[shadow] for shadow in one.shadows if shadow in known])
            (self.in_one_pass.add if one.run(one_pass) else self.in_one_pass.discard)(layer.index)
            for _, at, _ in work.gradients:
                shadow = layer.shadows[at]
                if shadow in known or layer.masters[at] is not None:
                    state[layer.parameters[at]] = known[shadow]
                    layer.keep_master(at, known[shadow])
            if self._store is not None:
                self._store.after(layer, {at: known[layer.shadows[at]] for _, at, _ in work.gradients})
            unchanged(self._kind, part.param_groups, before)
            if not early:
                self._tell(layer, work)
            self.spent_ns += self._backend.clock_ns() - begun

        layer.generation += 1
        layer.updated = self._submit(layer, update, layer.updated, layer.copied, after, self._committed)
        self._pending[layer.index] = layer
        if early:
            self._provisional[layer.index] = work
        layer.clip = clip
        self._make_pending(layer)

    def _submit(self, layer: Layer, work: Callable[[], None], *after: Mark | None) -> Mark:
        what = f"the update of layer {layer.name!r}"
        return self._lane.submit(what, work, after, place=self._places.get(layer.index, 0))

    def _make_pending(self, layer: Layer) -> None:
        if all(may_be_pending(parameter) for parameter in layer.parameters):
            make_pending(layer.parameters, partial(self.settle, layer))
        else:
            self.settle(layer)

    def _one_pass_of(self, layer: Layer, clip: DeferredClip | None) -> OnePass | None:
        """What may update this layer in one pass; asked where torch's own update takes several."""
        if clip is None and all(master is None for master in layer.masters):
            return None  # torch's own takes one, too
        if self._one_pass is None:
            self._one_pass = one_pass_for(self._kind)
        return None if isinstance(self._one_pass, str) else self._one_pass

    @property
    def why_not_in_one_pass(self) -> str | None:
        """In words, what keeps masters from being updated in one pass; None: nothing, or there are none."""
        if isinstance(self._one_pass, OnePass):
            return next(filter(None, map(why_not, map(self._form, self._optimizer.param_groups))), None)
        return self._one_pass

    @property
    def loops(self) -> bool:
        """Layers are updated by a loop over operators, where the optimizer has a fused form, too."""
        return any(is_open(self._form(group)) for group in self._optimizer.param_groups)

    def watch(self, layer: Layer) -> None:
        """Whoever touches the layer from now on, its gradients' sums of squares are not known any more."""
        if layer.index not in self._pending:  # where an update is on its way, they are watched already
            self._make_pending(layer)

    def known_squares(self) -> dict[int, float | Tensor]:
        """By the address of a gradient, the sum of squares of those that nobody has touched since they arrived."""
        return {
            layer.gradients[at].data_ptr(): square
            for layer in self._layers.values()
            if layer.gradients is not None
            for at, square in layer.squares.items()
            if square is not None
        }

    def write_clips(self) -> None:
        """Scale gradients that clipping has left to an update, for whoever clips again."""
        for layer in self._layers.values():
            if layer.clip is not None:
                self.settle(layer)

    def clip_later(self, parameters: Iterable[Tensor], factor: float) -> list[Tensor]:
        """Scale the gradients of moving layers as their update reads them. See [Note: deferred clipping].

        :param parameters: that have gradients.
        :returns: those that are not of a moving layer, whose gradients are not scaled.
        """
        gradients: dict[int, dict[int, Tensor]] = {}
        others: list[Tensor] = []
        for parameter in parameters:
            layer, at = self._place.get(id(parameter), (None, 0))
            if layer is None:
                others.append(parameter)
                continue
            with torch._C.DisableTorchFunctionSubclass():
                assert parameter.grad is not None
                gradients.setdefault(layer.index, {})[at] = parameter.grad
        for index, some in gradients.items():
            layer = self._layers[index]
            self.settle(layer)
            layer.clip = DeferredClip(factor, some)
            self._make_pending(layer)
        return others

    def _tell(self, layer: Layer, work: Work) -> None:
        for call in self.on_updated:
            call(layer.name, [layer.shadows[at] for _, at, _ in work.gradients])

    def settle(self, layer: Layer) -> None:
        """Somebody uses a layer: wait until its update is over; one that is not confirmed is taken back. Gradients that
        clipping has scaled are scaled.

        :raises OffloadError: it has failed, did not end in time, or cannot be taken back.
        """
        if layer.index in self._pending:
            assert layer.updated is not None
            self._stalls.reach("wait_update_ns", layer.updated, on_host=True)
            if self._backend.ledger:
                self._backend.ledger.read(COMPUTE, f"weights of {layer.name}")
            del self._pending[layer.index]
            make_ordinary(layer.parameters)
            if layer.index in self._provisional:
                self._take_back(layer)
        make_ordinary(layer.parameters)
        layer.squares.clear()
        if layer.clip is not None:
            clip, layer.clip = layer.clip, None
            if self._backend.ledger:
                self._backend.ledger.write(COMPUTE, f"gradients of {layer.name}")
            clip.write_what_is_left(layer.parameters)

    def settle_provisional(self) -> None:
        """Nothing may use the model before the step with what only the step makes valid."""
        for index in list(self._provisional):
            self.settle(self._layers[index])

    def loaded(self, saved: State) -> None:
        """The optimizer's `load_state_dict` has cast the state of masters to the format of their parameters."""
        names = [name for group in saved["param_groups"] for name in group["params"]]
        state = self._optimizer.__dict__["state"]
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        for name, parameter in zip(names, parameters, strict=True):
            layer, at = self._place.get(id(parameter), (None, 0))
            master = self._rest_masters.of(parameter) if layer is None else layer.masters[at]
            if master is None:
                continue
            if name in saved["state"] and parameter in state:
                restore(state[parameter], saved["state"][name], master.detach())
            (layer.doubt(at) if layer is not None else self._rest_masters.doubt(parameter))

    def widen(self) -> None:
        """State that was there before the masters is theirs."""
        for parameter, state in self._optimizer.__dict__["state"].items():
            if self._has_master(parameter):
                widen(state)

    def narrow(self) -> None:
        """The optimizer goes on without masters."""
        for parameter, state in self._optimizer.__dict__["state"].items():
            if self._has_master(parameter):
                narrow(state, parameter)

    def _has_master(self, parameter: nn.Parameter) -> bool:
        layer, at = self._place.get(id(parameter), (None, 0))
        return (self._rest_masters.of(parameter) if layer is None else layer.masters[at]) is not None

    def forget(self) -> None:
        """Nobody will look at the parameters of updates on their way any more."""
        for layer in self._layers.values():
            make_ordinary(layer.parameters)

    def drain(self) -> None:
        """Wait until all updates are over."""
        for layer in self._layers.values():
            self.settle(layer)
        if self._committed is not None:
            self._backend.reach(self._committed, COMPUTE, on_host=True)


def _without_master(state: State) -> State:
    """The same object: to an optimizer, state that is not empty is state that has been made."""
    state.pop(MASTER, None)
    return state
