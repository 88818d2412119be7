"""Checkpoints, copies and pickles are those of an ordinary model and its optimizer."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from offload_exactness import Model, differences, everything  # noqa: E402
from offload_loops import STEPS, adamw, batch, loss_of, plain_step, same  # noqa: E402
from torch import Tensor  # noqa: E402

import tightship_offload as offload  # noqa: E402

pytestmark = pytest.mark.torch


def test_checkpoints_go_to_plain_torch_and_back() -> None:
    def loop(model: Any, optimizer: Any, start: Callable[[], None]) -> list[Tensor]:
        start()
        for _ in range(STEPS):
            plain_step(model, optimizer)
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=True)
        fresh = Model()
        fresh.load_state_dict(loaded["model"])
        fresh_optimizer = adamw(fresh.parameters())
        fresh_optimizer.load_state_dict(copy.deepcopy(loaded["optimizer"]))
        seed = torch.get_rng_state()
        losses = [plain_step(fresh, fresh_optimizer).detach() for _ in range(3)]
        torch.set_rng_state(seed)
        for _ in range(3):
            plain_step(model, optimizer)
        assert differences(everything(fresh, fresh_optimizer, []), everything(model, optimizer, [])) == []
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
        torch.set_rng_state(seed)
        again = [plain_step(model, optimizer).detach() for _ in range(3)]
        assert [a.item() for a in again] == [b.item() for b in losses]
        return losses

    same(loop)


@pytest.mark.machines
def test_state_that_was_there_before() -> None:
    def loop(model: Any, optimizer: Any, start: Callable[[], None]) -> list[Tensor]:
        losses = [plain_step(model, optimizer).detach() for _ in range(3)]
        loss_of(model, batch()).backward()  # and gradients
        start()
        return losses + [plain_step(model, optimizer).detach() for _ in range(3)]

    same(loop)


def test_copies_and_pickles_are_ordinary() -> None:
    def loop(model: Any, optimizer: Any, start: Callable[[], None]) -> list[Tensor]:
        start()
        for _ in range(3):
            plain_step(model, optimizer)
        twin, twin_optimizer = copy.deepcopy((model, optimizer))
        file = io.BytesIO()
        torch.save((model, optimizer), file)
        file.seek(0)
        third, third_optimizer = torch.load(file, weights_only=False)
        seed = torch.get_rng_state()
        losses = []
        for pair in ((model, optimizer), (twin, twin_optimizer), (third, third_optimizer)):
            torch.set_rng_state(seed)
            losses.append(plain_step(*pair).detach())
        assert len({loss.item() for loss in losses}) == 1
        assert type(twin_optimizer) is type(third_optimizer) is torch.optim.AdamW
        return [*losses, *twin.state_dict().values(), *third.state_dict().values()]

    same(loop)


def test_removing_the_window_leaves_an_ordinary_model() -> None:
    def loop(model: Any, optimizer: Any, start: Callable[[], None]) -> list[Tensor]:
        start()
        losses = [plain_step(model, optimizer).detach() for _ in range(3)]
        if hasattr(type(optimizer), "tightship_kind"):
            offload.engine_of(model).remove()
            assert type(optimizer) is torch.optim.AdamW
            assert not model.blocks[0]._forward_pre_hooks and not model._forward_hooks
        return losses + [plain_step(model, optimizer).detach() for _ in range(3)]

    same(loop)
