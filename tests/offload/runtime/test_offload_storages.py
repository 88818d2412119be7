"""Each layer's storage on the device is its own: whatever keeps a view of it keeps that layer's weights."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from offload_exactness import Case, Model, Training, differences, reference, windowed  # noqa: E402
from offload_loops import adamw, batch, each_step, loss_of, plain_step, same  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import tightship_offload as offload  # noqa: E402
from tightship_offload import compat  # noqa: E402
from tightship_offload.backends.cpu import CpuBackend  # noqa: E402
from tightship_offload.runtime.layer import Layer  # noqa: E402

pytestmark = pytest.mark.torch


class KeepsItsWeight(torch.autograd.Function):
    """As 4-bit products and wrappers of hand-written kernels do: not through `save_for_backward`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.weight = weight.detach()
        ctx.save_for_backward(x)
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (x,) = ctx.saved_tensors
        gradient = gradients[0]
        return gradient @ ctx.weight, gradient.flatten(0, 1).t() @ x.flatten(0, 1)


class Kept(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16) / 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(KeepsItsWeight.apply(x, self.weight))


class Dropping(Model):
    """LayerDrop over blocks that keep their weight on ctx: which slot a layer has in backward is anybody's guess."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Kept() for _ in range(8))
        self.chance = random.Random(1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            if self.chance.random() > 0.3:
                x = block(x)
        return self.head(x)


@pytest.mark.machines
@pytest.mark.parametrize("window", [2, 3, 4])
def test_weights_kept_on_ctx_with_layers_dropped(window: int) -> None:
    same(each_step(plain_step), Dropping, window=window)


@pytest.mark.machines
@pytest.mark.parametrize("window", [2, 3, 4])
def test_evaluation_in_inference_mode_at_odd_moments(window: int) -> None:
    def loop(model: Any, optimizer: Any, start: Callable[[], None]) -> list[Tensor]:
        losses = []
        with torch.inference_mode():
            start()
        for number in range(10):
            if number in (0, 1, 4, 5, 6):
                with torch.inference_mode():
                    losses.append(loss_of(model, batch()).item())
            losses.append(plain_step(model, optimizer).item())
        return [torch.tensor(losses)]

    same(loop, window=window)


def test_the_same_numbers_where_torch_cannot_swap_storages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "HAS_SWAP", False)
    case = Case(training=Training(checkpointing="non-reentrant"), window=3, seed=3)
    found, _, ledger = windowed(case)
    assert differences(reference(case.training), found) == []
    assert ledger.races == []


def test_the_blocks_of_the_slots_are_all_the_memory_there_is() -> None:
    if not compat.HAS_SWAP:
        pytest.skip("this torch asks for each layer's memory again")
    model = Dropping()
    optimizer = adamw(model.parameters())
    offload.apply(model, optimizer, window=3, backend=CpuBackend(poison=True))
    engine = offload.engine_of(model)

    def blocks() -> set[int]:
        engine.window._h2d.submit("what was asked for", lambda: None).issued.wait(60)
        tensors = [slot._has_block for slot in engine.pool.slots] + [layer.on_device for layer in engine.layers]
        return {t.untyped_storage().data_ptr() for t in tensors if t.untyped_storage().nbytes()}

    before = blocks()
    assert len(before) == 3
    for _ in range(5):
        plain_step(model, optimizer)
        assert blocks() == before


def test_a_view_that_is_used_too_late_is_an_error() -> None:
    torch.manual_seed(0)
    model = Model()
    offload.apply(model, adamw(model.parameters()), window=2, backend=CpuBackend())
    kept = []
    model.blocks[0].up.register_forward_hook(lambda module, *_: kept.append(module.weight.detach()))
    loss_of(model, batch())
    with pytest.raises(RuntimeError, match="out of bounds for storage of size 0"):
        torch.ones(1, 16) @ kept[0].t()


class Experts(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(16, 16) / 16 for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = x + x @ weight
        return x


def test_a_layer_of_many_tensors_is_looked_through_as_often_as_one_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [0]
    state = Layer.state.fget

    def counted(layer: Layer) -> Any:
        looks[0] += 1
        return state(layer)

    monkeypatch.setattr(Layer, "state", property(counted))

    def looked_at(count: int) -> int:
        model = Model()
        model.blocks = nn.ModuleList(Experts(count) for _ in range(4))
        optimizer = adamw(model.parameters())
        offload.apply(model, optimizer, window=2, backend=CpuBackend())
        plain_step(model, optimizer)
        offload.engine_of(model).drain()
        looks[0] = 0
        plain_step(model, optimizer)
        return looks[0]

    assert looked_at(2) == looked_at(64)


class Auxiliary(Kept):
    """With a loss of its own that leaves by an attribute, as the routers of experts have."""

    def forward(self, x: Tensor) -> Tensor:
        self.loss = (x @ self.weight).square().mean()
        return super().forward(x)


@pytest.mark.machines
def test_a_backward_that_comes_to_a_layer_by_another_way_than_its_output() -> None:
    class Routed(Model):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Auxiliary() for _ in range(5))

    def body(model: Any, optimizer: Any) -> Tensor:
        loss = loss_of(model, batch()) + sum(block.loss for block in model.blocks)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    same(each_step(body), Routed)


class Weights:
    """Bytes of 16-bit copies of weights that are alive."""

    def __init__(self) -> None:
        self.casts: list[tuple[int, int]] = []

    def alive(self) -> int:
        return sum(size for at, size in self.casts if not torch.UntypedStorage._expired(at))


@pytest.mark.parametrize("reentrant", [False, True])
def test_autocast_keeps_no_copy_of_a_checkpointed_layer(reentrant: bool) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    weights = Weights()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            if func is torch.ops.aten._to_copy.default and made.shape == (16, 16) and made.dtype == torch.bfloat16:
                weights.casts.append((made.untyped_storage()._weak_ref(), made.untyped_storage().nbytes()))
            return made

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(12))
            self.most = 0

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant)
                self.most = max(self.most, weights.alive())
            return x

    model = Stack()
    offload.apply(model, torch.optim.SGD(model.parameters(), lr=1e-3), window=2, backend=CpuBackend())
    with torch.autocast("cpu", dtype=torch.bfloat16), Watch():
        model(torch.randn(4, 16, requires_grad=True))
    assert len(weights.casts) == 12
    assert model.most <= 16 * 16 * 2
