"""fp32 masters: of every trained 16-bit parameter, in checkpoints, and the same after a resume."""

from __future__ import annotations

import io
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from offload_exactness import LAYERS, Model, differences, everything  # noqa: E402
from offload_loops import adamw, batch, loss_of, plain_step  # noqa: E402
from offload_machines import machine  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import tightship_offload as offload  # noqa: E402
from tightship_offload.backends.base import Backend  # noqa: E402
from tightship_offload.backends.cpu import CpuBackend  # noqa: E402
from tightship_offload.runtime import native  # noqa: E402
from tightship_offload.runtime.masters import MASTER  # noqa: E402
from tightship_offload.runtime.one_pass import one_pass_for  # noqa: E402

pytestmark = pytest.mark.torch


def make(
    make_optimizer: Any = adamw, seed: int = 0, dtype: torch.dtype = torch.bfloat16, **options: Any
) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    model = Model().to(dtype)
    machine = CpuBackend(poison=True, delay_s=0.0003)
    options = {"window": 2, "resident": [1], "master": True, "backend": machine} | options
    return offload.apply(model, make_optimizer(model.parameters()), **options)


@pytest.fixture(params=["one pass", "by torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How layers are updated: as the machine can, or as where there is no compiler."""
    if request.param == "by torch":
        monkeypatch.setattr(native, "_found", [native.Native(None, "there is no C++ compiler")])
    return str(request.param)


@pytest.mark.machines
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("clip", [False, True])
def test_all_are_trained_as_by_hand(clip: bool, dtype: Any, way: str) -> None:
    """Gradients in 16 bits, AdamW on fp32 copies, rounded back: layers that move, residents, embedding and head."""

    def run(on: Backend | None) -> list[Tensor]:
        if on is not None:
            model, optimizer = make(dtype=dtype, backend=on)
        else:
            torch.manual_seed(0)
            model = Model().to(dtype)
            masters = [p.detach().float() for p in model.parameters()]
            optimizer = adamw(masters)
        for _ in range(20):
            loss_of(model, batch()).backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            if on is not None:
                optimizer.step()
                optimizer.zero_grad()
            else:
                for p, master in zip(model.parameters(), masters, strict=True):
                    master.grad = None if p.grad is None else p.grad.float()
                optimizer.step()
                with torch.no_grad():
                    for p, master in zip(model.parameters(), masters, strict=True):
                        p.copy_(master)
                model.zero_grad()
        if on is not None:
            updates, last = offload.engine_of(model).updates, offload.engine_of(model).last
            assert last.in_one_pass == (LAYERS - 1 if updates.why_not_in_one_pass is None else 0)
            assert way == "one pass" or updates.why_not_in_one_pass == "there is no C++ compiler"
            masters = [optimizer.state[p].get(MASTER, p.detach().float()) for p in model.parameters()]
        return [*(p.detach().clone() for p in model.parameters()), *masters]

    with machine() as on:
        found = run(on)
    for mine, theirs in zip(found, run(None), strict=True):
        assert mine.dtype == theirs.dtype and mine.equal(theirs)


def test_every_trained_parameter_has_its_state_in_fp32() -> None:
    model, optimizer = make()
    plain_step(model, optimizer)
    for name, parameter in model.named_parameters():
        if "unused" not in name:
            assert {value.dtype for value in optimizer.state[parameter].values()} == {torch.float32}, name
            assert optimizer.state[parameter][MASTER].to(torch.bfloat16).equal(parameter), name


def momentum(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)


def without_state(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=1e-2)


def saved(model: Any, optimizer: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("first", ["model", "optimizer"])
@pytest.mark.parametrize("make_optimizer", [adamw, momentum, without_state])
@pytest.mark.parametrize("options", [{}, {"early": offload.EarlyUpdates()}], ids=["", "early"])
def test_a_training_that_is_resumed_is_the_one_that_was_not(
    options: dict[str, Any], make_optimizer: Any, first: str
) -> None:
    model, optimizer = make(make_optimizer, **options)
    for number in range(6):
        if number == 3:
            checkpoint = torch.load(saved(model, optimizer), weights_only=True)
        torch.manual_seed(number)
        plain_step(model, optimizer)
    resumed, again = make(make_optimizer, seed=5, **options)
    plain_step(resumed, again)  # whatever was there before a load is gone
    parts = {"model": resumed, "optimizer": again}
    for name in sorted(parts, key=lambda name: name != first):
        parts[name].load_state_dict(checkpoint[name])
    for number in range(3, 6):
        torch.manual_seed(number)
        plain_step(resumed, again)
    assert differences(everything(model, optimizer, []), everything(resumed, again, [])) == []


def test_plain_torch_loads_the_checkpoint_and_we_load_its() -> None:
    model, optimizer = make()
    plain_step(model, optimizer)
    checkpoint = torch.load(saved(model, optimizer), weights_only=True)
    plain = Model().bfloat16()
    theirs = adamw(plain.parameters())
    plain.load_state_dict(checkpoint["model"])
    theirs.load_state_dict(checkpoint["optimizer"])
    plain_step(plain, theirs)
    assert theirs.state[plain.head.weight]["exp_avg"].dtype == torch.bfloat16
    again = Model().bfloat16()
    adam = adamw(again.parameters())
    again.load_state_dict(plain.state_dict())
    plain_step(again, adam)
    checkpoint = torch.load(saved(again, adam), weights_only=True)
    resumed, ours = make(seed=5)
    resumed.load_state_dict(checkpoint["model"])
    ours.load_state_dict(checkpoint["optimizer"])
    weights = again.state_dict()
    assert all(value.equal(weights[name]) for name, value in resumed.state_dict().items())
    plain_step(resumed, ours)
    assert ours.state[resumed.blocks[2].up.weight]["exp_avg"].dtype == torch.float32


@pytest.mark.parametrize("where", ["head", "blocks.1.up", "blocks.2.up"])
def test_a_weight_that_is_edited_is_edited_and_its_neighbours_keep_their_masters(where: str) -> None:
    model, optimizer = make(without_state)
    plain_step(model, optimizer)
    weight = model.get_submodule(where).weight
    before = optimizer.state[weight][MASTER].clone()
    assert not before.equal(weight.detach().float())
    with torch.no_grad():
        weight[0, 0] = 7.0
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    plain_step(model, optimizer)
    before[0, 0] = 7.0
    assert optimizer.state[weight][MASTER].equal(before)
    assert weight[0, 0] == 7.0


def test_why_masters_are_not_updated_in_one_pass() -> None:
    if str(one_pass_for(torch.optim.AdamW)).startswith("there is no C++ compiler"):
        pytest.skip("there is no C++ compiler")
    for make_optimizer, reason, fused in (
        (adamw, None, False),
        (torch.optim.AdamW, "the optimizer is not fused (fused=True)", False),
        (torch.optim.AdamW, None, True),  # the plan says the form that the script leaves open
        (lambda p: torch.optim.AdamW(p, fused=True, amsgrad=True), "the optimizer has amsgrad=True", False),
        (momentum, "SGD has no one-pass form", False),
    ):
        model, optimizer = make(make_optimizer, fused=fused)
        for _ in range(3):
            plain_step(model, optimizer)
        engine = offload.engine_of(model)
        assert engine.updates.why_not_in_one_pass == reason
        assert engine.last.in_one_pass == (0 if reason else LAYERS - 1)


def test_without_the_window_it_is_an_ordinary_training_again() -> None:
    torch.manual_seed(0)
    model = Model().bfloat16()
    optimizer = adamw(model.parameters())
    plain_step(model, optimizer)  # state that was there before
    offload.apply(model, optimizer, window=2, master=True, backend=CpuBackend())
    for _ in range(2):
        plain_step(model, optimizer)
    offload.engine_of(model).remove()
    plain_step(model, optimizer)
    for parameter, state in optimizer.state.items():
        assert MASTER not in state
        assert state["exp_avg"].dtype == parameter.dtype == torch.bfloat16
