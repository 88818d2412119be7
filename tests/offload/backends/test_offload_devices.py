"""What differs between a device and the host, as far as it can be seen without a device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from offload_exactness import Model  # noqa: E402

import tightship_offload as offload  # noqa: E402
from tightship_offload.runtime import apply  # noqa: E402
from tightship_offload.runtime.non_layer import place_state  # noqa: E402

pytestmark = pytest.mark.torch

META = torch.device("meta")


@pytest.mark.parametrize(("fused", "there"), [(True, "meta"), (False, "cpu")])
def test_state_is_where_the_kernel_looks_for_it(fused: bool, there: str) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([parameter], fused=fused)
    parameter.grad = torch.ones(3)
    optimizer.step()
    place_state(optimizer, parameter, META)
    assert {key: value.device.type for key, value in optimizer.state[parameter].items()} == {
        "step": there,
        "exp_avg": "meta",
        "exp_avg_sq": "meta",
    }


def test_several_gradients_of_a_parameter_become_one_before_a_mean_over_ranks() -> None:
    model = Model()
    offload.apply(model, torch.optim.SGD(model.parameters()), window=2)
    gradients = offload.engine_of(model).gradients
    layer = offload.engine_of(model).layers[0]
    first, second = (torch.full_like(layer.parameters[1], value) for value in (1.0, 2.0))
    lines = gradients._with_missing(layer, [(1, first, False), (1, second, True)])
    assert len(lines) == sum(p.requires_grad for p in layer.parameters)
    [(_, whole, adds)] = [line for line in lines if line[0] == 1]
    assert not adds and torch.equal(whole, torch.full_like(whole, 3.0))


@pytest.mark.parametrize(("placed", "taken"), [(["cpu", "cuda:1"], "cuda:1"), (["cpu"], "cuda:3")])
def test_the_device_is_the_one_that_the_model_is_on(
    monkeypatch: pytest.MonkeyPatch, placed: list[str], taken: str
) -> None:
    tensors = [SimpleNamespace(device=torch.device(where)) for where in placed]
    model: Any = SimpleNamespace(parameters=lambda: iter(tensors), buffers=lambda: iter(()))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(apply, "CudaBackend", lambda device: device)
    assert str(apply._machine(model)) == taken
