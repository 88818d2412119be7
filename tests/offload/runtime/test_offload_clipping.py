"""`offload.clip_grad_norm_`: the same numbers, while gradients of moving layers are scaled by their update."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from offload_exactness import LAYERS, Model  # noqa: E402
from offload_loops import adamw, batch, each_step, loss_of, same  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import tightship_offload as offload  # noqa: E402
from tightship_offload.backends.cpu import CpuBackend  # noqa: E402
from tightship_offload.runtime import norms  # noqa: E402
from tightship_offload.runtime.deferred_clip import DeferredClip  # noqa: E402

pytestmark = pytest.mark.torch
BITES = 0.01


def clipped(
    after: Callable[[Any, Any], Tensor | None] = lambda model, optimizer: None, clip: Any = offload.clip_grad_norm_
) -> Callable[[Any, Any], Tensor]:
    """A step that clips, and what the loop does between clipping and the step."""

    def body(model: Any, optimizer: Any) -> Tensor:
        loss_of(model, batch()).backward()
        norm = clip(model.parameters(), BITES)
        seen = after(model, optimizer)
        optimizer.step()
        optimizer.zero_grad()
        return norm if seen is None else norm + seen

    return body


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def bf16() -> Any:
    return Model().bfloat16()


class Written:
    """How often a factor was written into gradients before or after their update."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        write = DeferredClip.write

        def counted(clip: DeferredClip) -> None:
            self.times += bool(clip._gradients)
            write(clip)

        monkeypatch.setattr(DeferredClip, "write", counted)


@pytest.mark.parametrize("large", [False, True], ids=["", "large"])
@pytest.mark.parametrize("make", [adamw, sgd])
def test_the_same_numbers(make: Any, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr(norms, "LARGE", 0)
    same(each_step(clipped()), make_optimizer=make)


@pytest.mark.parametrize("clip", [nn.utils.clip_grad_norm_, offload.clip_grad_norm_])
def test_ours_gives_torchs_numbers(clip: Any) -> None:
    """Of a model without a window, and of one that was clipped by torch's."""
    torch.manual_seed(7)
    model = Model()
    loss_of(model, batch()).backward()
    twin = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    norm = clip(model.parameters(), BITES)
    total = math.sqrt(sum(float(g.double().square().sum()) for g in twin))
    assert float(norm) == pytest.approx(total, rel=1e-6)
    for parameter, before in zip((p for p in model.parameters() if p.grad is not None), twin, strict=True):
        assert torch.allclose(parameter.grad, before * (BITES / (total + 1e-6)), rtol=1e-5)


def test_bf16_with_masters_is_clipped_in_its_own_format(monkeypatch: pytest.MonkeyPatch) -> None:
    written = Written(monkeypatch)
    results = []
    for clip in (nn.utils.clip_grad_norm_, offload.clip_grad_norm_):
        torch.manual_seed(7)
        model = bf16()
        optimizer = adamw(model.parameters())
        offload.apply(model, optimizer, window=2, master=True, backend=CpuBackend(poison=True, delay_s=0.0003))
        torch.manual_seed(11)
        for _ in range(6):
            clipped(clip=clip)(model, optimizer)
        results.append([p.detach().clone() for p in model.parameters()])
        last = offload.engine_of(model).last
    assert all(map(torch.equal, *results))
    assert last is not None
    if offload.engine_of(model).updates.why_not_in_one_pass is None:
        assert last.in_one_pass == LAYERS
        assert written.times == LAYERS, "in the first step, which makes the optimizer's state"


def gradients_look(model: Any, optimizer: Any) -> Tensor:
    return torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).sum()


def gradients_edited(model: Any, optimizer: Any) -> None:
    model.blocks[1].up.weight.grad.data.mul_(0.5)
    model.blocks[3].up.weight.grad = None


def clipped_again(model: Any, optimizer: Any) -> Tensor:
    return offload.clip_grad_norm_(model.blocks[2].parameters(), BITES / 100)


def another_backward(model: Any, optimizer: Any) -> Tensor:
    loss = loss_of(model, batch())
    loss.backward()
    return loss


def an_evaluation(model: Any, optimizer: Any) -> Tensor:
    with torch.no_grad():
        return loss_of(model, batch())


AFTER = [gradients_look, gradients_edited, clipped_again, another_backward, an_evaluation]


@pytest.mark.machines
@pytest.mark.parametrize("after", AFTER)
def test_whoever_looks_at_a_gradient_finds_it_scaled(after: Any) -> None:
    same(each_step(clipped(after)), window=3)


@pytest.mark.machines
@pytest.mark.parametrize("keep", ["until after the step", "zeroed in place", "added to"])
def test_gradients_that_outlive_the_step(keep: str) -> None:
    def body(model: Any, optimizer: Any) -> Tensor:
        loss = loss_of(model, batch())
        if keep == "until after the step":
            optimizer.zero_grad()
        loss.backward()
        norm = offload.clip_grad_norm_(model.parameters(), BITES)
        optimizer.step()
        if keep == "until after the step":
            return norm + gradients_look(model, optimizer)
        if keep == "zeroed in place":
            optimizer.zero_grad(set_to_none=False)
        return norm

    same(each_step(body))


def test_nothing_is_written_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGD has no one-pass update: its own multiplies in the lane, once, and the loop's thread does nothing."""
    written = Written(monkeypatch)
    model = Model()
    optimizer = sgd(model.parameters())
    offload.apply(model, optimizer, window=2, backend=CpuBackend())
    for _ in range(3):
        clipped()(model, optimizer)
    offload.engine_of(model).drain()
    assert written.times == 3 * LAYERS


def test_a_window_that_is_removed_leaves_scaled_gradients() -> None:
    torch.manual_seed(7)
    model = Model()
    optimizer = adamw(model.parameters())
    offload.apply(model, optimizer, window=2, backend=CpuBackend())
    loss_of(model, batch()).backward()
    offload.clip_grad_norm_(model.parameters(), BITES)
    offload.engine_of(model).remove()
    assert all(type(p) is nn.Parameter for p in model.parameters())
    found = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    assert float(found) == pytest.approx(BITES, rel=1e-4)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_spreads_as_torchs_does(value: float) -> None:
    results = []
    for clip in (nn.utils.clip_grad_norm_, offload.clip_grad_norm_):
        torch.manual_seed(7)
        model = Model()
        optimizer = sgd(model.parameters())
        offload.apply(model, optimizer, window=2, backend=CpuBackend())
        loss_of(model, batch()).backward()
        model.blocks[2].up.weight.grad[0, 0] = value
        clip(model.parameters(), 1.0)
        with pytest.raises(RuntimeError, match="non-finite"):
            clip(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        results.append([p.detach().clone() for p in model.parameters()])
    for mine, theirs in zip(*results, strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=0, equal_nan=True)


# ---- norms -----------------------------------------------------------------------------------------------------------

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_squares(dtype: torch.dtype) -> None:
    """Near the exact ones, and the same on any number of threads."""
    generator = torch.Generator().manual_seed(3)
    tensors = [torch.randn(size, generator=generator).to(dtype) for size in (0, 1, 31, 33, 5000, (1 << 17) + 77)]
    tensors.append(torch.randn(300, 70, generator=generator).to(dtype).t())
    found = norms.squares(tensors, 1)
    if found is None:
        pytest.skip("there is no C++ compiler")
    for tensor, sum_ in zip(tensors, found, strict=True):
        assert sum_ == pytest.approx(float(tensor.double().square().sum()), rel=2 * norms.NORM_ERROR_FRAC)
    for threads in (2, 7):
        assert norms.squares(tensors, threads) == found


def test_the_norm_of_large_gradients_is_nearer_than_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    gradient = torch.full((norms.LARGE,), 0.1)
    exact = math.sqrt(norms.LARGE) * float(gradient[0])
    found = norms.total_norm([gradient])
    if found is None:
        pytest.skip("there is no C++ compiler")
    assert float(found) == pytest.approx(exact, rel=norms.NORM_ERROR_FRAC)
    assert found.dtype is torch.float32 and found.shape == ()


def test_what_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert norms.total_norm([torch.ones(norms.LARGE - 1)]) is None
    monkeypatch.setattr(norms, "LARGE", 1)
    for other in (
        torch.ones(4, dtype=torch.float64),
        torch.ones(8)[::2],
        torch.ones(4).to_sparse(),
        torch.ones(2).expand(3, 2),
    ):
        assert norms.total_norm([torch.ones(4), other]) is None


# ---- norms of what has just arrived ----------------------------------------------------------------------------------


class Read:
    """How many numbers of gradients were read for a norm by the loop's thread, which asks for all of its threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.numbers = 0
        monkeypatch.setattr(norms, "LARGE", 1)
        squares = norms.squares

        def counted(tensors: list[Tensor], threads: int) -> Any:
            self.numbers += sum(tensor.numel() for tensor in tensors)
            return squares(tensors, threads)

        monkeypatch.setattr(norms, "squares", counted)  # gradients.py has its own name for it


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    if norms.squares([], 1) is None:
        pytest.skip("there is no C++ compiler")
    return Read(monkeypatch)


def rest_of(model: Any) -> int:
    return sum(p.numel() for name, p in model.named_parameters() if not name.startswith("blocks"))


@pytest.mark.parametrize("accumulation", [1, 3])
def test_clipping_reads_no_gradient_of_a_moving_layer_again(read: Read, accumulation: int) -> None:
    model = Model()
    optimizer = adamw(model.parameters())
    offload.apply(model, optimizer, window=2, backend=CpuBackend())
    counts = []
    for _ in range(3):
        for _ in range(accumulation):
            loss_of(model, batch()).backward()
        read.numbers = 0
        norm = offload.clip_grad_norm_(model.parameters(), BITES)
        counts.append(read.numbers)
        optimizer.step()
        optimizer.zero_grad()
    assert counts[0] > counts[1] == counts[2] == rest_of(model), "the first clipping shows that the loop clips"
    assert float(norm) > BITES


def no_touch(model: Any) -> None:
    pass


def edited_in_place(model: Any) -> None:
    model.blocks[2].up.weight.grad.mul_(3.0)


def edited_unseen(model: Any) -> None:
    model.blocks[2].up.weight.grad.data.mul_(3.0)


def replaced(model: Any) -> None:
    model.blocks[2].up.weight.grad = torch.ones_like(model.blocks[2].up.weight)


def dropped(model: Any) -> None:
    model.blocks[2].up.weight.grad = None


@pytest.mark.parametrize("early", [None, offload.EarlyUpdates()], ids=["", "early"])
@pytest.mark.parametrize("touch", [no_touch, edited_in_place, edited_unseen, replaced, dropped])
def test_the_norm_is_of_the_gradients_as_they_are(read: Read, touch: Any, early: Any) -> None:
    def body(model: Any, optimizer: Any) -> Tensor:
        loss_of(model, batch()).backward()
        touch(model)
        norm = offload.clip_grad_norm_(model.parameters(), BITES)
        optimizer.step()
        optimizer.zero_grad()
        return norm

    same(each_step(body), early=early)


def test_more_backwards_than_usual(read: Read) -> None:
    """The sums that are known are of fewer backwards than the gradients."""
    turns: dict[int, int] = {}

    def body(model: Any, optimizer: Any) -> Tensor:
        turn = turns[id(model)] = turns.get(id(model), 0) + 1
        for _ in range(1 + turn % 3):
            loss_of(model, batch()).backward()
        norm = offload.clip_grad_norm_(model.parameters(), BITES)
        optimizer.step()
        optimizer.zero_grad()
        return norm

    same(each_step(body))
