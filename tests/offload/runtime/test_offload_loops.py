"""What a loop does around its steps has the same effect with and without a window, to the bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from offload_loops import STEPS, batch, each_step, loss_of, plain_step, same  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from tightship_offload.integrations.zero_grad import wait_for_no_update  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.machines]


def test_reading_parameters_right_after_the_step() -> None:
    def body(model: Any, optimizer: Any) -> Tensor:
        plain_step(model, optimizer)
        return model.blocks[0].qkv.weight.norm() + sum(p.sum() for p in model.parameters())

    same(each_step(body))


def test_average_of_the_weights_by_hook_and_by_hand() -> None:
    averages = []

    def loop(model: Any, optimizer: Any, start: Callable[[], None]) -> list[Tensor]:
        average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
        averages.append([p.detach().clone() for p in model.parameters()])
        start()

        def follow(*_: Any) -> None:
            with torch.no_grad():
                for mean, p in zip(averages[-1], model.parameters(), strict=True):
                    mean.lerp_(p, 0.1)

        optimizer.register_step_post_hook(follow)
        losses = []
        for _ in range(STEPS):
            losses.append(plain_step(model, optimizer).detach())
            average.update_parameters(model)
        return losses + [p.detach() for p in average.parameters()] + averages[-1]

    same(loop)


def test_hooks_run_once_per_step() -> None:
    calls: list[str] = []

    def loop(model: Any, optimizer: Any, start: Callable[[], None]) -> list[Tensor]:
        start()
        calls.clear()
        optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
        optimizer.register_step_post_hook(lambda *_: calls.append("post"))
        return [plain_step(model, optimizer).detach() for _ in range(STEPS)]

    same(loop)
    assert calls == ["pre", "post"] * STEPS


def test_editing_weights_after_the_step() -> None:
    def body(model: Any, optimizer: Any) -> Tensor:
        loss = plain_step(model, optimizer)
        with torch.no_grad():
            model.blocks[1].qkv.weight.clamp_(-0.1, 0.1)
        model.blocks[2].up.weight.data.mul_(0.99)
        return loss

    same(each_step(body))


def test_editing_weights_between_micro_batches() -> None:
    def body(model: Any, optimizer: Any) -> Tensor:
        loss_of(model, batch()).backward()
        model.blocks[0].qkv.weight.data.mul_(0.99)
        with torch.no_grad():
            model.blocks[4].down.mul_(0.99)
        return plain_step(model, optimizer)

    same(each_step(body))


def test_editing_gradients() -> None:
    def body(model: Any, optimizer: Any) -> Tensor:
        loss_of(model, batch()).backward()
        model.blocks[3].up.weight.grad = torch.full_like(model.blocks[3].up.weight, 0.25)
        loss = loss_of(model, batch())
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        model.blocks[0].qkv.bias.grad = None
        for p in model.parameters():
            if p.grad is not None:
                p.grad.add_(torch.full_like(p.grad, 1e-3))
        optimizer.step()
        optimizer.zero_grad()
        return loss

    same(each_step(body))


@pytest.mark.parametrize("how", ["to_zero", "of_model", "by_hand", "before_backward", "never"])
def test_ways_to_zero_gradients(how: str) -> None:
    def body(model: Any, optimizer: Any) -> Tensor:
        loss = loss_of(model, batch())
        if how == "before_backward":
            optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if how == "to_zero":
            optimizer.zero_grad(set_to_none=False)
        elif how == "of_model":
            model.zero_grad()
        elif how == "by_hand":
            for p in model.parameters():
                p.grad = None
        return loss

    same(each_step(body))


def test_penalty_on_all_parameters() -> None:
    def body(model: Any, optimizer: Any) -> Tensor:
        loss = loss_of(model, batch()) + 1e-3 * sum(p.pow(2).sum() for p in model.parameters())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    same(each_step(body))


def test_closure() -> None:
    def body(model: Any, optimizer: Any) -> Tensor:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, batch())
            loss.backward()
            return loss

        found: Tensor = optimizer.step(closure)
        return found

    same(each_step(body))


def test_scaler_with_skipped_steps() -> None:
    skipped = []

    def loop(model: Any, optimizer: Any, start: Callable[[], None]) -> list[Tensor]:
        start()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
        losses = []
        for number in range(STEPS):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = loss_of(model, batch())
            scaler.scale(loss * (float("inf") if number % 5 == 3 else 1.0)).backward()
            if number % 2:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(torch.tensor(scaler.get_scale()))
        skipped.append(sum(b < a for a, b in itertools.pairwise(losses)))
        return losses

    same(loop)
    same(loop, make_optimizer=lambda p: torch.optim.SGD(p, lr=1e-2))
    assert skipped and all(skipped)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evaluation_in_between(mode: Any) -> None:
    def body(model: Any, optimizer: Any) -> Tensor:
        plain_step(model, optimizer)
        model.eval()
        with mode():
            loss = loss_of(model, batch()).clone()
        model.train()
        return torch.tensor(loss.item())

    same(each_step(body))


@pytest.mark.parametrize("before", [False, True])
def test_scheduler_that_changes_rate_and_momentum(before: bool) -> None:
    def loop(model: Any, optimizer: Any, start: Callable[[], None]) -> list[Tensor]:
        if not before:
            start()
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=STEPS)
        if before:
            start()
        losses = []
        for _ in range(STEPS):
            losses.append(plain_step(model, optimizer).detach())
            schedule.step()
        return losses

    with pytest.warns() as caught:
        same(loop)
        import warnings

        warnings.warn("so that there is one", stacklevel=1)
    assert not [w for w in caught if "lr_scheduler.step()" in str(w.message)], "our step counts as a step"


class Broken(RuntimeError):
    pass


def test_a_forward_and_a_backward_that_fail_leave_everything_in_order() -> None:
    def loop(model: Any, optimizer: Any, start: Callable[[], None]) -> list[Tensor]:
        start()
        losses = [plain_step(model, optimizer).detach()]

        def fail(*_: Any) -> None:
            raise Broken

        handle = model.blocks[2].up.register_forward_hook(fail)
        with pytest.raises(Broken):
            model(batch())
        handle.remove()
        losses.append(plain_step(model, optimizer).detach())
        x = model.blocks[1].qkv.register_forward_hook(lambda m, a, out: out.register_hook(fail) and None)
        with pytest.raises(Broken):
            loss_of(model, batch()).backward()
        x.remove()
        return losses + [plain_step(model, optimizer).detach() for _ in range(3)]

    same(loop)


@pytest.mark.parametrize("whose", ["the optimizer's", "the model's"])
def test_gradients_of_a_backward_that_fails_can_be_dropped(whose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As loops do that skip a batch for which the device's memory was too small."""
    monkeypatch.setattr(nn.Module, "zero_grad", nn.Module.zero_grad)  # what is replaced comes back
    if whose == "the model's":
        wait_for_no_update()  # as the launcher and the adapters do

    def fail(*_: Any) -> None:
        raise Broken

    def body(model: Any, optimizer: Any) -> Tensor:
        handle = model.blocks[1].qkv.register_forward_hook(lambda m, a, out: out.register_hook(fail) and None)
        with pytest.raises(Broken):
            loss_of(model, batch()).backward()
        handle.remove()
        (optimizer if whose == "the optimizer's" else model).zero_grad()
        return plain_step(model, optimizer)

    same(each_step(body))


def test_a_step_right_after_a_backward_that_failed_sees_what_it_left() -> None:
    def fail(*_: Any) -> None:
        raise Broken

    def body(model: Any, optimizer: Any) -> Tensor:
        loss = loss_of(model, batch())
        handle = model.blocks[1].down.register_hook(fail)
        with pytest.raises(Broken):
            loss.backward()
        handle.remove()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    same(each_step(body))
