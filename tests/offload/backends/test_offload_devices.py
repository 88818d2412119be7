"""What differs between a device and the host, as far as it can be seen without a device."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from offload_exactness import Model  # noqa: E402

import tightship_offload as offload  # noqa: E402
from tightship_offload.backends.cpu import CpuBackend  # noqa: E402
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
    monkeypatch.setattr(apply, "CudaBackend", lambda device, deadline_s: (str(device), deadline_s))
    assert apply._machine(model, 7.0) == (taken, 7.0)


class Queued(CpuBackend):
    """Events have numbers, and each actor keeps those that it has waited for on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded = 0
        self.waited: dict[str, list[int]] = {}

    def record(self) -> int:
        self.recorded += 1
        return self.recorded

    def order_after(self, device_event: int) -> None:
        self.waited.setdefault(threading.current_thread().name, []).append(device_event)


def test_the_first_copy_into_a_slot_comes_after_what_was_queued_before_apply() -> None:
    """The device's allocator gives memory that kernels on their way may still use."""
    machine = Queued()
    model = Model()
    offload.apply(model, torch.optim.SGD(model.parameters()), window=2, backend=machine)
    before_apply = machine.recorded
    assert before_apply > 0
    model(torch.zeros(1, 4, dtype=torch.long))
    machine.close()
    assert {1, 2} & set(machine.waited["tightship-h2d"]), "an event of the computation, from before the first forward"


def test_what_a_scaler_gives_the_optimizer_is_in_host_memory_before_an_update_reads_it() -> None:
    """torch's fused kernel copies it without waiting for the device."""
    read: list[Any] = []

    class Fused(torch.optim.SGD):
        _step_supports_amp_scaling = True

        def step(self, closure: Any = None) -> None:
            read.append(getattr(self, "grad_scale", None))

    class Number(torch.Tensor):
        def cpu(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            return torch.tensor(2.0)

    model = Model()
    optimizer = Fused(model.blocks.parameters(), lr=0.1)
    offload.apply(model, optimizer, window=2)
    read.clear()
    model(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
    optimizer.grad_scale = Number(torch.tensor(3.0))  # type: ignore[attr-defined]
    optimizer.step()
    offload.engine_of(model).drain()
    assert [float(scale) for scale in read] == [2.0] * 5
