"""What the adapters share: which module a plan is for, and what moves before it is applied."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from offload_exactness import Model  # noqa: E402
from torch import nn  # noqa: E402

from tightship_offload.errors import OffloadError, PlanError  # noqa: E402
from tightship_offload.integrations.adapter import OneLine, refuse_processes  # noqa: E402
from tightship_offload.plan.model import HardwareSpec, Plan, Window  # noqa: E402
from tightship_offload.runtime.apply import describe  # noqa: E402
from tightship_offload.runtime.blocks import find_blocks  # noqa: E402
from tightship_offload.runtime.engine import has_engine  # noqa: E402
from tightship_offload.runtime.pending import PendingParameter  # noqa: E402

pytestmark = pytest.mark.torch
ELSEWHERE = torch.device("meta")


class Outer(nn.Module):
    """A library's wrapper, with something of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Model(tied=True)
        self.extra = nn.Linear(2, 2)


def plan_of(model: nn.Module, **window: Any) -> Plan:
    return Plan(model=describe(model, find_blocks(model)), window=Window(slots=2, **window))


def devices(model: nn.Module) -> dict[str, str]:
    return {name: value.device.type for name, value in model.state_dict(keep_vars=True).items()}


@pytest.mark.parametrize("by_hand", [False, True])
def test_layers_that_take_turns_stay_while_the_rest_moves(by_hand: bool) -> None:
    model = Outer()
    given: Any = (
        {"window": 2, "resident": [1], "layers": "net.blocks.*"} if by_hand else plan_of(model.net, resident=(1,))
    )
    with OneLine(given).layers_stay(model):
        assert model.to(ELSEWHERE) is model
    stayed = {name for name, device in devices(model).items() if device == "cpu"}
    assert stayed == {name for name in devices(model) if "blocks." in name and "blocks.1." not in name}
    model.net.blocks.to(ELSEWHERE)
    assert set(devices(model).values()) == {"meta"}, "afterwards they move as ever"


def test_layers_that_stay_take_on_the_dtype_of_the_move() -> None:
    model = Outer()
    weights = {name: value.clone() for name, value in model.net.blocks.state_dict().items()}
    with OneLine({"window": 2, "layers": "net.blocks.*"}).layers_stay(model):
        model.to(ELSEWHERE, torch.bfloat16)
    assert {value.dtype for value in model.parameters()} == {torch.bfloat16}
    for name, value in model.net.blocks.state_dict().items():
        assert torch.equal(value, weights[name].bfloat16()), name


def test_a_move_that_fails_leaves_nothing_behind() -> None:
    model = Outer()
    with pytest.raises(ValueError, match="no device"), OneLine({"window": 2}).layers_stay(model):
        raise ValueError("no device")
    assert not any("_apply" in part.__dict__ for part in model.modules())


def test_a_plan_finds_the_module_that_it_was_made_for() -> None:
    model = Outer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    line = OneLine(plan_of(model.net))
    line.apply(model, optimizer)
    assert has_engine(model.net) and not has_engine(model)
    line.apply(model, optimizer)  # a second time does nothing
    line.remove(model)
    assert not has_engine(model.net) and type(optimizer) is torch.optim.SGD


def test_dropping_gradients_after_the_step_waits_for_no_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.Module, "zero_grad", nn.Module.zero_grad)  # what is replaced comes back
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    OneLine({"window": 2}).apply(model, optimizer)
    watched = model.blocks[0].qkv.weight
    before = watched.detach().clone()
    model(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
    optimizer.step()
    model.zero_grad()
    assert type(watched) is PendingParameter
    assert not watched.equal(before) and type(watched) is nn.Parameter
    assert all(parameter.grad is None for parameter in model.parameters())
    model(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
    model.zero_grad(set_to_none=False)
    assert not watched.grad.any()


def test_what_is_refused() -> None:
    plan = plan_of(Model(layers=3))
    with pytest.raises(PlanError, match="the plan is for 3 layers, this model has 5"):
        OneLine(plan).apply(Outer(), torch.optim.SGD(Outer().parameters(), lr=0.1))
    with pytest.raises(OffloadError, match="offload has no 'slots'; expected window, resident, layers"):
        OneLine({"window": 2, "slots": 2})
    with pytest.raises(OffloadError, match="offload by hand needs a window"):
        OneLine({"resident": [0]})
    with pytest.raises(PlanError, match=r"nowhere\.yaml"):
        OneLine("nowhere.yaml")


def test_a_plan_of_another_machine_is_refused_at_once() -> None:
    rates = ("h2d_bytes_per_s", "d2h_bytes_per_s", "h2d_duplex_bytes_per_s", "d2h_duplex_bytes_per_s")
    sizes = {"device": "H200", "device_bytes": 1, "host_bytes": 1, "cores": 1}
    here = HardwareSpec(**sizes, **dict.fromkeys(rates, 1e9), adam_params_per_s={1: 1e9})
    with pytest.raises(PlanError, match="the plan is for a 'H200', this machine has a"):
        OneLine(replace(plan_of(Model()), hardware=here))


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_processes()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(OffloadError, match="This training has 2 processes"):
        refuse_processes()
