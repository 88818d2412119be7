"""The engine behind one model and its optimizer: the parts, wired; their start, their end, their figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from threading import Thread
from typing import Any
from weakref import WeakKeyDictionary, finalize, ref

from torch import Tensor, nn
from torch.optim import Optimizer

from tightship_offload.backends.base import COMPUTE, Backend, Mark
from tightship_offload.errors import OffloadError
from tightship_offload.plan.model import UpdateOrder
from tightship_offload.runtime.early_updates import EarlyUpdates
from tightship_offload.runtime.gradients import Gradients
from tightship_offload.runtime.layer import Layer
from tightship_offload.runtime.masters import RestMasters, State
from tightship_offload.runtime.non_layer import put_back, rest_of
from tightship_offload.runtime.nvme import NvmeStore
from tightship_offload.runtime.optimizer import give_back, take_over
from tightship_offload.runtime.parallel import Averaging
from tightship_offload.runtime.saved_tensors import Hook, LayerHooks
from tightship_offload.runtime.slots import SlotPool
from tightship_offload.runtime.stalls import Stalls
from tightship_offload.runtime.stats import OffloadStats
from tightship_offload.runtime.updates import Updates
from tightship_offload.runtime.window import Window, graph_task

_engines: WeakKeyDictionary[nn.Module, Engine] = WeakKeyDictionary()


class Engine:
    """See the module. Made by `apply`."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        layers: Sequence[Layer],
        backend: Backend,
        pool: SlotPool,
        *,
        prefetch: int,
        early: EarlyUpdates | None = None,
        averaging: Averaging | None = None,
        store: NvmeStore | None = None,
        masters: RestMasters | None = None,
        order: UpdateOrder = UpdateOrder.NEXT_USE,
        threads: int | None = None,
        fused: bool = False,
    ) -> None:
        self.layers = tuple(layers)
        self.backend = backend
        self.pool = pool
        self._model = ref(model)
        self._optimizer = optimizer
        self._averaging = averaging
        self._store = store
        self._counting = OffloadStats()
        self._stalls = Stalls(backend, self._counting)
        self._step_ended_ns: int | None = None
        self.last: OffloadStats | None = None
        """Of the last step; None before the first."""
        self.on_step: list[Callable[[OffloadStats], None]] = []
        """Called at the end of each `optimizer.step()`."""
        self.updates = Updates(
            optimizer, layers, backend, self._stalls, early, store, masters, order=order, threads=threads, fused=fused
        )
        self.updates.widen()
        self.window = Window(
            layers,
            backend,
            pool,
            prefetch=prefetch,
            stats=self._counting,
            stalls=self._stalls,
            settle=self.updates.settle,
        )
        self.moving = {id(p) for layer in layers for p in layer.parameters}
        """Of parameters."""
        rest = [p for p in model.parameters() if id(p) not in self.moving]
        self.gradients = Gradients(layers, backend, self.window, self._counting, self._stalls, averaging, rest)
        self._hooks = [LayerHooks(layer, self.window, self.gradients.arm) for layer in layers]
        self._handles = [
            model.register_forward_pre_hook(Hook(self._begin_forward), prepend=True),
            model.register_forward_hook(Hook(self._end_forward), always_call=True),
        ]
        for layer in layers:
            self.gradients.arm(layer)
        self.gradients.on_sent = self._gradients_leave
        self.gradients.on_squares = self.updates.watch
        if store is not None:
            self.window.read_ahead = store.read_ahead
            self._open(model, store)
        take_over(optimizer, self)
        _engines[model] = self
        finalize(model, _let_go, self).atexit = False  # at the end of the process the backend closes itself

    def step(self, optimizer: Optimizer) -> None:
        """Start all updates of a step; the gradients are the ones that the loop sees."""
        self.end_backward()
        self.updates.start(self.window.order, self._rest_now)
        self.gradients.usual_backwards, self.gradients.backwards = self.gradients.backwards, 0
        self._report()

    def end_backward(self) -> None:
        """Gradients of a backward that failed are where the loop looks for them."""
        self.window.abandon_backward()

    def drain(self) -> None:
        """Wait until all updates are over."""
        self.updates.drain()

    def loaded(self, saved: State) -> None:
        """The optimizer has loaded a state dict."""
        self.updates.loaded(saved)

    def remove(self) -> None:
        """Undo `apply`: the model and the optimizer are ordinary ones, with all values; layers that moved are in host
        memory, and the rest is where it was (`model.to(…)` brings them together)."""
        self.drain()
        for hooks in self._hooks:
            hooks.remove()
        for handle in self._handles:
            handle.remove()
        self.gradients.remove()
        give_back(self._optimizer)
        self.updates.narrow()
        if self._store is not None:
            self._store.close()
        model = self._model()
        if model is not None:
            _engines.pop(model, None)
        self.backend.close()

    def _begin_forward(self, module: nn.Module, args: Any) -> None:
        for hooks in self._hooks:
            hooks.abandon()
        if graph_task() == -1:
            self.updates.settle_provisional()
            self.gradients.arm_rest()
            if self._averaging and module.training:  # as DistributedDataParallel does before each forward
                self._averaging.start_alike(module.buffers(), self.backend.device)
        self.window.begin_forward()

    def _gradients_leave(self, layer: Layer, complete: set[int], arrived: Mark) -> None:
        if self.updates.wants_early(self.gradients.backwards):
            self.updates.start_early(layer, complete, arrived)

    def _end_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        self.window.end_forward()

    @property
    def steps_done(self) -> int:
        """Whole steps behind this training, those before a restart included where it is kept in files."""
        self.drain()
        return self._counting.step if self._store is None else self._store.step

    def _open(self, model: nn.Module, store: NvmeStore) -> None:
        """Go on where the files are, or put the start into them."""
        if store.rest is None:
            store.write_rest(self._rest_now())
            store.commit()
            return
        put_back(model, self._optimizer, self.moving, store.rest)
        store.rest = None  # what is the training's own now takes no memory twice
        for layer in self.layers:
            for at, state in store.states(layer).items():
                self._optimizer.state[layer.parameters[at]] = dict(state)

    def _rest_now(self) -> dict[str, Any]:
        model = self._model()
        assert model is not None
        rest = rest_of(model, self._optimizer, self.moving)
        self.backend.reach(self.backend.mark("what does not move"), COMPUTE, on_host=True)
        return rest

    def _report(self) -> None:
        now_ns = self.backend.clock_ns()
        counting = self._counting
        if self._step_ended_ns is not None:
            counting.step_ns = now_ns - self._step_ended_ns
        counting.step += 1
        self._stalls.read()
        counting.update_ns, self.updates.spent_ns = self.updates.spent_ns, 0
        counting.in_one_pass = len(self.updates.in_one_pass)
        self.last = replace(counting)
        for name in OffloadStats.__dataclass_fields__:
            if name != "step":
                setattr(counting, name, 0)
        for call in tuple(self.on_step):
            call(self.last)
        self._step_ended_ns = now_ns


def _let_go(engine: Engine) -> None:
    """The model is gone, as between the trials of a sweep: so is what it held, once the lanes are done with it."""
    engine.gradients.remove()
    engine.updates.forget()
    # Not here: this may be any thread, a lane's, too. What the lanes still use lives as long as the engine.
    Thread(target=_close, args=(engine,), name="tightship-close", daemon=True).start()


def _close(engine: Engine) -> None:
    engine.backend.close()


def has_engine(model: nn.Module) -> bool:
    """Whether `apply` was called on this very object."""
    return model in _engines


def engines_of(parameters: Iterable[Tensor]) -> list[Engine]:
    """Those that move some of these parameters."""
    asked = {id(parameter) for parameter in parameters}
    return [engine for engine in list(_engines.values()) if not asked.isdisjoint(engine.moving)]


def engine_of(model: nn.Module) -> Engine:
    """The engine behind a model.

    :raises OffloadError: `apply` was not called on this very object.
    """
    found = _engines.get(model)
    if found is None:
        raise OffloadError(f"This {type(model).__name__} has no offload engine; call tightship_offload.apply first")
    return found
