"""What a probe takes for the device and for weights, where the loop moves its model after the optimizer is made."""

from __future__ import annotations

import time
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from offload_exactness import Model  # noqa: E402
from offload_loops import adamw, plain_step  # noqa: E402

from tightship_offload.job.probe import Probe  # noqa: E402

pytestmark = pytest.mark.torch


def measured(*, moved: bool) -> dict[str, Any]:
    records: list[dict[str, Any]] = []
    torch.manual_seed(7)
    model = Model()
    optimizer = adamw(model.parameters())
    Probe(model, optimizer, 1, records.append)
    if moved:
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
    while not records:
        plain_step(model, optimizer)
    return records[0]


def test_weights_that_moved_are_no_activations() -> None:
    assert measured(moved=True)["activation_bytes"] == measured(moved=False)["activation_bytes"]


class OnGpu(torch.nn.Parameter):
    """As a parameter looks that was moved to a GPU."""

    is_cuda = True
    __torch_function__ = torch._C._disabled_torch_function_impl


class Event:
    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at_s = time.perf_counter()

    def elapsed_time(self, later: Event) -> float:
        return (later.at_s - self.at_s) * 1e3


def test_a_model_that_is_moved_to_a_gpu_is_timed_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    records: list[dict[str, Any]] = []
    model = Model()
    optimizer = adamw(model.parameters())
    probe = Probe(model, optimizer, 1, records.append)
    probe.clip(lambda: None, 1.0)  # of a mark on the host's clock
    for parameter in model.parameters():
        parameter.__class__ = OnGpu
    while not records:
        plain_step(model, optimizer)
    assert records[0]["device"] == "a GPU"
    assert min(records[0]["forward_ns"]) > 0
