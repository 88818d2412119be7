"""Gradients leave the device as their layer completes, and are ordinary `.grad`s on the host when backward returns.

[Note: fresh gradients] Before autograd accumulates into a parameter of a moving layer, its `.grad` is put aside, so
that autograd always hands us a fresh gradient on the device. It is copied to the host slab, or added to what is
there: the same addition, of the same numbers in the same order, as autograd would have done in place.

[Note: several arrivals] Of several forwards before one backward each may bring a gradient of its own: a parameter that
moves between devices loses the node in which autograd would have gathered them. So what has to be whole before it goes
on (a mean over ranks, an early update) waits for the end of backward where a layer was entered more than once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tightship_offload.backends.base import COMPUTE, Backend, CopyOut, Mark
from tightship_offload.errors import OffloadError
from tightship_offload.plan.capabilities import RUNTIME
from tightship_offload.runtime.layer import Layer
from tightship_offload.runtime.norms import has_squares, squares
from tightship_offload.runtime.parallel import Averaging
from tightship_offload.runtime.stalls import Stalls
from tightship_offload.runtime.stats import OffloadStats
from tightship_offload.runtime.window import Window

_MISSING = torch.empty(0)
"""Stands for the gradient of a parameter that has none on this rank."""


class Gradients:
    """The hand-off of all moving layers."""

    def __init__(
        self,
        layers: Sequence[Layer],
        backend: Backend,
        window: Window,
        stats: OffloadStats,
        stalls: Stalls,
        averaging: Averaging | None = None,
        rest: Sequence[nn.Parameter] = (),
    ) -> None:
        """:param rest: parameters that do not move, whose gradients are averaged at the end of backward."""
        self._layers = {layer.index: layer for layer in layers}
        self._backend = backend
        self._window = window
        self._stats = stats
        self._stalls = stalls
        self._largest_bytes = max(
            (p.numel() * p.element_size() for layer in layers for p in layer.parameters), default=0
        )
        self._d2h = backend.lane("d2h")
        self._arrived: dict[int, list[tuple[int, Tensor, bool]]] = {}
        """Per layer: which parameter, its fresh gradient, and whether it adds to what is on the host."""
        self._home: dict[tuple[int, int], bool] = {}
        """Parameters whose `.grad` is put aside; True: the host slab holds a gradient."""
        self._flying: deque[tuple[Mark, list[tuple[int, Tensor, bool]]]] = deque()
        self._averaging = averaging
        self._rest = tuple(rest) if averaging else ()
        self._turn = self._first_turn()
        self._left: set[int] = set()
        """Layers that backward has left and whose turn has not come."""
        self._usual: dict[int, set[int]] = {}
        """Which parameters of a layer had gradients in the last backward."""
        self._armed: dict[int, list[torch.utils.hooks.RemovableHandle]] = {}
        self.backwards = 0
        """How many have brought gradients since the last step."""
        self.usual_backwards = 0
        """How many there were before the last step."""
        self.takes_squares = False
        """The loop clips large gradients: their sums of squares are taken as they arrive. See [Note: norms]."""
        self.on_squares: Callable[[Layer], None] = lambda layer: None
        """All of a layer's gradients are with the loop, and sums of squares of some are known until one is touched."""
        self.on_sent: Callable[[Layer, set[int], Mark], None] = lambda layer, complete, mark: None
        """A layer's gradients are on their way to the host; told the parameters that have one, of this backward."""
        window.on_layer_left = self.send
        window.on_backward_end = self.finish

    def arm(self, layer: Layer) -> None:
        """Hook the parameters that require gradients now; called before each forward of the layer."""
        for at, parameter in enumerate(layer.parameters):
            if parameter.requires_grad and id(parameter) not in self._armed:
                self._armed[id(parameter)] = [
                    parameter.register_hook(self._before(layer, at)),  # type: ignore[no-untyped-call]
                    parameter.register_post_accumulate_grad_hook(self._after(layer, at)),  # type: ignore[no-untyped-call]
                ]

    def arm_rest(self) -> None:
        """Backward must end with us even if it never comes to a layer that moves."""
        for parameter in self._rest:
            if parameter.requires_grad and id(parameter) not in self._armed:
                hook = parameter.register_post_accumulate_grad_hook(self._rest_arrives)  # type: ignore[no-untyped-call]
                self._armed[id(parameter)] = [hook]

    def _rest_arrives(self, parameter: Tensor) -> None:
        self._window.begin_backward()

    def _first_turn(self) -> list[int]:
        return sorted(self._layers, reverse=True) if self._averaging else []

    def remove(self) -> None:
        """The parameters are as they were."""
        for handles in self._armed.values():
            for handle in handles:
                handle.remove()
        self._armed.clear()

    def _before(self, layer: Layer, at: int) -> Callable[[Tensor], None]:
        parameter, key = layer.parameters[at], (layer.index, at)

        def put_aside(gradient: Tensor) -> None:
            if not self._window.was_entered:
                raise OffloadError(
                    f"Layer {layer.name!r} gets a gradient and no layer was ever called: the model uses its blocks in "
                    "another way than block(x), which the window cannot see; call them so, or give the modules that "
                    "are called as layers"
                )
            self._window.begin_backward()
            if gradient.layout is not torch.strided:
                raise OffloadError(
                    f"A gradient of layer {layer.name!r} is sparse; use sparse=False in its embedding, or make layer "
                    f"{layer.index} resident"
                )
            old = parameter.grad
            if old is not None:
                home = layer.gradient(at, self._backend)
                if old.data_ptr() != home.data_ptr():
                    home.copy_(old)  # the loop has put another tensor there
                if self._backend.ledger:
                    self._backend.ledger.write(COMPUTE, f"gradients of {layer.name}")
                self._home[key] = True
                parameter.grad = None
            else:
                self._home.setdefault(key, False)

        return put_aside

    def _after(self, layer: Layer, at: int) -> Callable[[Tensor], None]:
        key = (layer.index, at)

        def take(parameter: Tensor) -> None:
            fresh, parameter.grad = parameter.grad, None
            assert fresh is not None
            self._arrived.setdefault(layer.index, []).append((at, fresh.detach(), self._home.get(key, False)))
            self._home[key] = True
            if self._averaging and layer.index not in self._turn:
                raise OffloadError(
                    f"A gradient of layer {layer.name!r} came after the others of its layer were averaged over "
                    f"the ranks; make layer {layer.index} resident"
                )

        return take

    def send(self, index: int) -> None:
        """Backward has left a layer: its gradients go to the host, in turn where ranks must agree on one."""
        if not self._averaging:
            self._submit(index)
            return
        self._left.add(index)
        while self._turn and self._is_complete(self._turn[0]):
            self._submit(self._turn.pop(0))

    def _is_complete(self, index: int) -> bool:
        usual = self._usual.get(index)
        if self._window.entered[index] > 1:
            return False
        return index in self._left and usual is not None and usual <= {at for at, _, _ in self._arrived.get(index, ())}

    def _submit(self, index: int) -> None:
        batch = self._arrived.pop(index, [])
        layer, backend, averaging = self._layers[index], self._backend, self._averaging
        self._usual[index] = {at for at, _, _ in batch}
        if averaging:
            batch = self._with_missing(layer, batch)
        if not batch:
            return
        homes = [layer.gradient(at, backend) for at, _, _ in batch]
        what = f"gradients of layer {layer.name!r} to arrive on the host"
        takes_squares = self.takes_squares and self.backwards == self.usual_backwards - 1

        def copy() -> None:
            if backend.ledger:
                backend.ledger.write("d2h", f"gradients of {layer.name}")
            gradients: list[Tensor | None] = [fresh for _, fresh, _ in batch]
            if averaging:
                missing = [at for at, fresh, _ in batch if fresh is _MISSING]
                given = [None if fresh is _MISSING else fresh for _, fresh, _ in batch]
                gradients = averaging.mean(given, homes, backend.device)
                for (at, _, _), mean in zip(batch, gradients, strict=True):
                    if at in missing and mean is not None:
                        self._home[index, at] = True
            lines = zip(gradients, homes, batch, strict=True)
            copies = [CopyOut(mean, home, adds) for mean, home, (_, _, adds) in lines if mean is not None]
            backend.copy_out(copies, self._largest_bytes)
            if takes_squares:
                layer.squares.update(self._squares(batch, gradients, homes))

        # A layer that was not entered since its update may still be in it, with the last gradients in hand.
        mark = self._d2h.submit(what, copy, (backend.mark(f"the backward of layer {index}"), layer.updated))
        self._stats.d2h_bytes += sum(fresh.numel() * fresh.element_size() for _, fresh, _ in batch)
        self._flying.append((mark, batch))
        whole = self._window.entered[index] <= 1
        self.on_sent(layer, {at for (owner, at), has in self._home.items() if owner == index and has and whole}, mark)
        while len(self._flying) > RUNTIME.gradients_in_flight:
            self._land()

    def _squares(
        self, batch: list[tuple[int, Tensor, bool]], arrived: list[Tensor | None], homes: list[Tensor]
    ) -> dict[int, float | Tensor | None]:
        """By place, the sum of squares of what is on the host now; on a device it is of what has just left it."""
        places = [at for at, _, _ in batch]
        if self._backend.device.type == "cpu":
            found = squares(homes, 1) if all(map(has_squares, homes)) else None
            return dict.fromkeys(places) if found is None else dict(zip(places, found, strict=True))
        added = {at for at, _, adds in batch if adds}
        alone = {at: one for at, one in zip(places, arrived, strict=True) if one is not None and at not in added}
        norms = torch._foreach_norm(list(alone.values()), 2, dtype=torch.float32) if alone else []
        return dict.fromkeys(places) | {at: norm.square() for at, norm in zip(alone, norms, strict=True)}

    def _with_missing(self, layer: Layer, batch: list[tuple[int, Tensor, bool]]) -> list[tuple[int, Tensor, bool]]:
        """A line for each parameter that requires a gradient, in order: other ranks may have what this one lacks."""
        found: dict[int, tuple[int, Tensor, bool]] = {}
        for at, fresh, adds in batch:
            found[at] = (at, found[at][1] + fresh, found[at][2]) if at in found else (at, fresh, adds)
        with torch._C.DisableTorchFunctionSubclass():
            return [
                found.get(at, (at, _MISSING, parameter.grad is not None))
                for at, parameter in enumerate(layer.parameters)
                if parameter.requires_grad
            ]

    def _average_rest(self, averaging: Averaging) -> None:
        """Of what does not move, all at once, in the lane, where collectives keep their order."""
        with torch._C.DisableTorchFunctionSubclass():
            rest = [parameter for parameter in self._rest if parameter.requires_grad]
        means: list[Tensor | None] = []

        def average() -> None:
            means.extend(averaging.mean([p.grad for p in rest], rest, self._backend.device))

        mark = self._d2h.submit("the other gradients' mean over the ranks", average, (self._backend.mark("backward"),))
        self._stalls.reach("wait_d2h_ns", mark, on_host=True)
        for parameter, mean in zip(rest, means, strict=True):
            if mean is not None and parameter.grad is not None:
                parameter.grad.copy_(mean)
            elif mean is not None:
                parameter.grad = mean

    def _land(self) -> None:
        # The batch is kept until the copy is over: the device may use its memory again only then.
        mark, _batch = self._flying.popleft()
        self._stalls.reach("wait_d2h_ns", mark, on_host=True)

    def finish(self) -> None:
        """Backward is over: all gradients are where the loop looks for them."""
        for index in self._turn or list(self._arrived):
            self._submit(index)
        while self._flying:
            self._land()
        self._turn = self._first_turn()
        self._left.clear()
        if self._averaging:
            self._average_rest(self._averaging)
        with torch._C.DisableTorchFunctionSubclass():  # an early update may be on its way; this is no touch
            for (index, at), has in self._home.items():
                if has:
                    layer = self._layers[index]
                    parameter: nn.Parameter = layer.parameters[at]
                    parameter.grad = layer.gradient(at, self._backend)
        self.backwards += bool(self._home)
        for index in {index for index, _ in self._home}:
            if self._layers[index].squares:
                self.on_squares(self._layers[index])
        self._home.clear()
