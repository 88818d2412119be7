"""Models, graphs and optimizers of every kind train the same with and without a window, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from offload_exactness import LAYERS, VOCABULARY, WIDTH, Block, Model, differences, everything  # noqa: E402
from offload_loops import STEPS, batch, each_step, loss_of, plain_step, same  # noqa: E402
from offload_machines import machine  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch.utils.checkpoint import checkpoint, checkpoint_sequential  # noqa: E402

import tightship_offload as offload  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.machines]


def test_several_forwards_per_backward() -> None:
    def body(model: Any, optimizer: Any) -> Tensor:
        loss = loss_of(model, batch()) + loss_of(model, batch(size=3))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    same(each_step(body), window=3)


def test_two_graphs_at_once_each_with_its_backward_and_one_twice() -> None:
    def body(model: Any, optimizer: Any) -> Tensor:
        first, second = loss_of(model, batch()), loss_of(model, batch())
        first.backward(retain_graph=True)
        second.backward()
        first.backward()
        optimizer.step()
        optimizer.zero_grad()
        return first

    same(each_step(body))


def test_gradients_asked_for_without_accumulation() -> None:
    def body(model: Any, optimizer: Any) -> Tensor:
        weight = model.blocks[2].qkv.weight
        (found,) = torch.autograd.grad(loss_of(model, batch()), [weight])
        plain_step(model, optimizer)
        return found.norm()

    same(each_step(body))


class Twice(Model):
    """Every block is called twice."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for _ in range(2):
            for block in self.blocks:
                x = block(x)
        return self.head(x)


class Skipping(Model):
    """Stochastic depth: some blocks do not run, and all run in another order than they are registered."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in reversed(self.blocks):
            if torch.rand(()) > 0.4:
                x = block(x)
        return self.head(x)


class Segments(Model):
    """Checkpoints around several blocks."""

    reentrant = False

    def forward(self, tokens: Tensor) -> Tensor:
        x = checkpoint_sequential(self.blocks, 2, self.embedding(tokens), use_reentrant=self.reentrant)
        return self.head(x)


class ReentrantSegments(Segments):
    reentrant = True


class Inside(Block):
    """A checkpoint inside of the block."""

    reentrant = False

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=self.reentrant) * self.gain


class ReentrantInside(Inside):
    reentrant = True


def with_blocks(kind: type[nn.Module]) -> Callable[[], Model]:
    def make() -> Model:
        model = Model()
        model.blocks = nn.ModuleList(kind() for _ in range(LAYERS))
        return model

    return make


@pytest.mark.parametrize("window", [2, 3])
@pytest.mark.parametrize(
    "make", [Twice, Skipping, Segments, ReentrantSegments, with_blocks(Inside), with_blocks(ReentrantInside)]
)
def test_shapes_of_models(make: Callable[[], nn.Module], window: int) -> None:
    same(each_step(plain_step), make, window=window)


class EncoderDecoder(nn.Module):
    """Two stacks; the decoder's blocks see the encoder's output."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True) for _ in range(3))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(WIDTH, 2, 32, batch_first=True) for _ in range(3))

    def forward(self, tokens: Tensor) -> Tensor:
        memory = x = self.embedding(tokens)
        for block in self.encoder:
            memory = block(memory)
        for block in self.decoder:
            x = block(x, memory)
        return x @ self.embedding.weight.t()


class Stage(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))


class ResNetLike(nn.Module):
    """Uneven blocks with buffers, channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Embedding(VOCABULARY, 8)
        self.layer1 = nn.Sequential(Stage(1, 4), Stage(4, 4))
        self.layer2 = nn.Sequential(Stage(4, 8), Stage(8, 8))
        self.head = nn.Linear(8, VOCABULARY)
        self.to(memory_format=torch.channels_last)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.stem(tokens).unsqueeze(1).contiguous(memory_format=torch.channels_last)
        return self.head(self.layer2(self.layer1(x)).mean(1))


class LoraLinear(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.a.t() @ self.b.t()


def lora() -> Model:
    model = Model().requires_grad_(False)
    for block in model.blocks:
        block.qkv = LoraLinear(block.qkv)
    return model


@pytest.mark.parametrize("make", [EncoderDecoder, ResNetLike, lora])
def test_kinds_of_models(make: Callable[[], nn.Module]) -> None:
    same(each_step(plain_step), make)


def test_layers_that_are_unfrozen_later() -> None:
    def frozen() -> Model:
        model = Model()
        model.blocks[:3].requires_grad_(False)
        return model

    def loop(model: Any, optimizer: Any, start: Callable[[], None]) -> list[Tensor]:
        start()
        losses = [plain_step(model, optimizer).detach() for _ in range(3)]
        model.blocks[1].requires_grad_(True)
        optimizer.add_param_group({"params": list(model.blocks[1].parameters()), "lr": 1e-3})
        return losses + [plain_step(model, optimizer).detach() for _ in range(STEPS)]

    same(loop, frozen)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
        lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-2)),
        lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9),
        lambda p: torch.optim.Adagrad(p, lr=1e-2),
        lambda p: torch.optim.NAdam(p, lr=1e-3),
        lambda p: torch.optim.Adafactor(p, lr=1e-2),
        lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, fused=True),
        lambda p: Lion(p, lr=1e-3),
    ],
)
def test_kinds_of_optimizers(make: Callable[[Any], Any]) -> None:
    same(each_step(plain_step), make_optimizer=make)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_form_that_is_left_open_is_fused_on_request_and_only_in_layers(kind: Any) -> None:
    results = []
    for with_window in (False, True):
        torch.manual_seed(7)
        model = Model()
        layers = list(model.blocks.parameters())
        rest = [p for p in model.parameters() if all(p is not one for one in layers)]
        groups = [{"params": layers} | ({} if with_window else {"fused": True}), {"params": rest}]
        optimizer = kind(groups, lr=1e-2)
        with machine() if with_window else nullcontext() as on:
            if with_window:
                offload.apply(model, optimizer, window=2, fused=True, backend=on)
                assert not offload.engine_of(model).updates.loops
            losses = [plain_step(model, optimizer).detach() for _ in range(STEPS)]
            results.append(everything(model, optimizer, losses))
    assert differences(*results) == []
    assert [group["fused"] for group in optimizer.param_groups] == [None, None]


class Lion(torch.optim.Optimizer):
    """An optimizer of the user's own."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    p.add_(momentum.mul(0.9).add(p.grad, alpha=0.1).sign_(), alpha=-group["lr"])
                    momentum.lerp_(p.grad, 0.01)
