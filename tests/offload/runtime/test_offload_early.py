"""Updates that start during backward: exact where the declaration holds, taken back or refused where it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from waiting import PATIENCE_S

torch = pytest.importorskip("torch", reason="torch is not installed")

from offload_exactness import LAYERS, Model  # noqa: E402
from offload_loops import STEPS, adamw, batch, each_step, loss_of, plain_step, same  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import tightship_offload as offload  # noqa: E402
from tightship_offload.backends.cpu import CpuBackend  # noqa: E402
from tightship_offload.errors import OffloadError  # noqa: E402
from tightship_offload.runtime.early_updates import EarlyUpdates  # noqa: E402
from tightship_offload.runtime.engine import has_engine  # noqa: E402

pytestmark = pytest.mark.torch


class Seen:
    """How many early updates there were, and how many were taken back."""

    def __init__(self) -> None:
        self.early = 0
        self.back = 0

    def watch(self, body: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
        def watched(model: Any, optimizer: Any) -> Tensor:
            if not has_engine(model):
                return body(model, optimizer)
            updates = offload.engine_of(model).updates
            if not hasattr(updates, "watched"):
                updates.watched = True
                start = updates.start_early

                def counted(*args: Any) -> None:
                    before = len(updates._provisional)
                    start(*args)
                    self.early += len(updates._provisional) - before

                updates.start_early = counted
            found = body(model, optimizer)
            self.back = updates.taken_back
            return found

        return watched


def check(body: Callable[[Any, Any], Tensor], *, micro_batches: int = 1, **options: Any) -> Seen:
    seen = Seen()
    same(each_step(seen.watch(body)), early=EarlyUpdates(micro_batches=micro_batches), **options)
    return seen


EVERY = LAYERS * (STEPS - 1)
"""All layers in all steps but the first, which shows which parameters have gradients."""


def clipped(clip: Callable[..., Any], limit: float, accumulation: int = 1) -> Callable[[Any, Any], Tensor]:
    def body(model: Any, optimizer: Any) -> Tensor:
        for _ in range(accumulation):
            loss = loss_of(model, batch())
            loss.backward()
        norm = clip(model.parameters(), limit)
        optimizer.step()
        optimizer.zero_grad()
        return norm + loss.detach()

    return body


@pytest.mark.machines
def test_a_loop_as_declared() -> None:
    seen = check(plain_step)
    assert (seen.early, seen.back) == (EVERY, 0)


@pytest.mark.machines
@pytest.mark.parametrize("sgd", [False, True])
def test_accumulation_as_declared(sgd: bool) -> None:
    make: Any = (lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)) if sgd else adamw
    seen = check(clipped(offload.clip_grad_norm_, 1e9, 4), micro_batches=4, make_optimizer=make)
    assert (seen.early, seen.back) == (EVERY, 0)


@pytest.mark.machines
@pytest.mark.parametrize(("clip", "stands"), [(offload.clip_grad_norm_, True), (nn.utils.clip_grad_norm_, False)])
def test_clipping_that_does_not_bite(clip: Any, stands: bool) -> None:
    seen = check(clipped(clip, 1e9))
    assert seen.early == EVERY
    assert seen.back == (0 if stands else EVERY)


@pytest.mark.machines
@pytest.mark.parametrize("clip", [offload.clip_grad_norm_, nn.utils.clip_grad_norm_])
@pytest.mark.parametrize("kind", [{}, {"norm_type": float("inf")}, {"foreach": False}])
def test_clipping_that_bites(clip: Any, kind: dict[str, Any]) -> None:
    seen = check(clipped(lambda p, limit: clip(p, limit, **kind), 0.01))
    assert (seen.early, seen.back) == (EVERY, EVERY)


@pytest.mark.machines
def test_clipping_that_bites_now_and_then() -> None:
    seen = check(clipped(offload.clip_grad_norm_, 3.2))
    assert 0 < seen.back < seen.early == EVERY


def late_edit(model: Any, optimizer: Any) -> Tensor:
    loss = loss_of(model, batch())
    loss.backward()
    model.blocks[1].up.weight.grad.data.mul_(0.5)
    model.blocks[3].up.weight.grad = None
    optimizer.step()
    optimizer.zero_grad()
    return loss


def later_rate(model: Any, optimizer: Any) -> Tensor:
    loss = loss_of(model, batch())
    loss.backward()
    optimizer.param_groups[0]["lr"] *= 0.9
    optimizer.step()
    optimizer.zero_grad()
    return loss


def one_more_backward(model: Any, optimizer: Any) -> Tensor:
    loss_of(model, batch()).backward()
    return plain_step(model, optimizer)


def one_more_graph(model: Any, optimizer: Any) -> Tensor:
    first, second = loss_of(model, batch()), loss_of(model, batch())
    first.backward()
    second.backward()
    optimizer.step()
    optimizer.zero_grad()
    return first


def skipped(model: Any, optimizer: Any) -> Tensor:
    for _ in range(2):
        optimizer.zero_grad()
        loss = loss_of(model, batch())
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def evaluation_before_the_step(model: Any, optimizer: Any) -> Tensor:
    loss_of(model, batch()).backward()
    with torch.no_grad():
        loss = loss_of(model.eval(), batch())
    model.train()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def look_before_the_step(model: Any, optimizer: Any) -> Tensor:
    loss_of(model, batch()).backward()
    norm = model.blocks[2].up.weight.norm()
    optimizer.step()
    optimizer.zero_grad()
    return norm


def state_before_the_step(model: Any, optimizer: Any) -> Tensor:
    loss = loss_of(model, batch())
    loss.backward()
    optimizer.state_dict()
    optimizer.step()
    optimizer.zero_grad()
    return loss


UNDECLARED = [
    late_edit,
    later_rate,
    one_more_backward,
    skipped,
    evaluation_before_the_step,
    look_before_the_step,
    state_before_the_step,
]


@pytest.mark.machines
@pytest.mark.parametrize("body", UNDECLARED)
def test_what_was_not_declared_is_taken_back(body: Callable[[Any, Any], Tensor]) -> None:
    assert check(body, window=3).back > 0


@pytest.mark.parametrize("body", UNDECLARED)
def test_without_a_copy_it_is_refused(body: Callable[[Any, Any], Tensor]) -> None:
    torch.manual_seed(0)
    model = Model()
    optimizer = adamw(model.parameters())
    offload.apply(model, optimizer, window=3, early=EarlyUpdates(undo=False), backend=CpuBackend(deadline_s=PATIENCE_S))
    plain_step(model, optimizer)
    plain_step(model, optimizer)
    with pytest.raises(
        OffloadError, match=r"was updated during backward, and the loop uses it .* before optimizer\.step"
    ):
        body(model, optimizer)


@pytest.mark.machines
def test_fewer_backwards_than_declared_are_updated_at_the_step() -> None:
    assert check(plain_step, micro_batches=2).early == 0


@pytest.mark.machines
def test_average_of_the_weights_is_told_of_what_stands() -> None:
    told: list[str] = []

    def body(model: Any, optimizer: Any) -> Tensor:
        if has_engine(model):
            engine = offload.engine_of(model)
            engine.updates.on_updated[:] = [lambda name, _: told.append(name)]
        return clipped(offload.clip_grad_norm_, 3.2)(model, optimizer)

    check(body)
    assert len(told) == LAYERS * STEPS


def test_a_declaration_that_cannot_be() -> None:
    with pytest.raises(OffloadError, match="micro_batches is 0; expected 1 or more"):
        EarlyUpdates(micro_batches=0)


@pytest.mark.machines
def test_a_scaler_that_the_optimizer_applies_itself_takes_early_updates_back() -> None:
    seen = Seen()
    scalers: dict[int, Any] = {}

    def body(model: Any, optimizer: Any) -> Tensor:
        scaler = scalers.setdefault(id(optimizer), torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2))
        loss = loss_of(model, batch())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss

    same(each_step(seen.watch(body)), early=EarlyUpdates())
    assert seen.back == seen.early == EVERY


def one_graph_of_two(model: Any, optimizer: Any) -> Tensor:
    loss = loss_of(model, batch()) + loss_of(model, batch())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


@pytest.mark.machines
@pytest.mark.parametrize("body", [one_graph_of_two, one_more_graph])
def test_layers_that_forward_came_to_twice_wait_for_the_step(body: Callable[[Any, Any], Tensor]) -> None:
    assert check(body).early == 0
