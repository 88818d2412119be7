"""What a probe takes for the device and for weights, where the loop moves its model after the optimizer is made."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from offload_exactness import Model  # noqa: E402
from offload_loops import adamw, plain_step  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tightship_offload.job.probe import Probe, _state_bytes  # noqa: E402
from tightship_offload.job.small_memory import move_one_of_each  # noqa: E402
from tightship_offload.runtime.blocks import find_blocks  # noqa: E402

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


class Recomputing(Model):
    reentrant = False

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


class ReentrantRecomputing(Recomputing):
    reentrant = True


def record_of(make: Callable[[], Any], prepare: Callable[[Any], Any] = lambda model: model) -> dict[str, Any]:
    records: list[dict[str, Any]] = []
    torch.manual_seed(7)
    model = make()
    optimizer = adamw(model.parameters())
    Probe(model, optimizer, 1, records.append)
    run = prepare(model)
    while not records:
        plain_step(run, optimizer)
    return records[0]


@pytest.mark.parametrize("kind", [Recomputing, ReentrantRecomputing])
def test_what_a_layer_keeps_is_seen_where_it_is_computed_again(kind: type[Model]) -> None:
    plain, recomputed = record_of(Model), record_of(kind)
    assert recomputed["recomputes"] and not plain["recomputes"]
    whole, inputs = plain["activation_bytes"], plain["input_bytes"]
    # A layer's input is kept by the checkpoint; which of the two counts it is no matter.
    for seen, kept, given in zip(recomputed["activation_bytes"], whole, inputs, strict=True):
        assert kept - given <= seen <= kept + given
    assert recomputed["rest_activation_bytes"] == plain["rest_activation_bytes"]


@pytest.mark.parametrize("kind", [Recomputing, ReentrantRecomputing])
def test_the_backward_of_a_layer_that_is_computed_again_is_timed(kind: type[Model]) -> None:
    assert min(record_of(kind)["backward_ns"]) > 0


def test_recomputing_under_a_probe_changes_no_number() -> None:
    def losses(probed: bool) -> list[float]:
        torch.manual_seed(7)
        model = Recomputing()
        optimizer = adamw(model.parameters())
        if probed:
            Probe(model, optimizer, 3, lambda record: None)
        return [plain_step(model, optimizer).item() for _ in range(6)]

    assert losses(True) == losses(False)


@pytest.mark.parametrize("whole", [True, False])
def test_a_compiled_model_is_timed_without_compiling_the_probe(whole: bool) -> None:
    def compiled(model: Any) -> Any:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        if whole:
            return torch.compile(model, backend="aot_eager")
        for block in model.blocks:
            block.compile(backend="aot_eager")
        return model

    record = record_of(Model, compiled)
    # Each block is one piece, and all of them are one piece of code.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 4
    assert not [code for code in torch._dynamo.utils.guard_failures if "probe" in code.co_filename]
    assert min(record["forward_ns"]) > 0 and min(record["activation_bytes"]) > 0


# ---- memory that is short --------------------------------------------------------------------------------------------


def test_layers_share_the_memory_of_one_while_they_are_timed() -> None:
    records: list[dict[str, Any]] = []
    torch.manual_seed(7)
    model = Model()
    optimizer = adamw(model.parameters())
    probe = Probe(model, optimizer, 1, records.append, short=True)
    parameters = [p for block in probe.blocks for p in block.parameters]
    while not records:
        plain_step(model, optimizer)
    places = {p.data_ptr() for p in parameters}
    assert len(places) == len(parameters) / len(probe.blocks)
    assert not [p for p in parameters if p in optimizer.state] and len(optimizer.state) > 0
    plain = measured(moved=False)
    for key in ("activation_bytes", "input_bytes", "trainable", "state_bytes_per_parameter", "model"):
        assert records[0][key] == plain[key], key
    assert min(records[0]["forward_ns"]) > 0 and min(records[0]["backward_ns"]) > 0
    assert (records[0]["short"], plain["short"]) == (True, False)
    assert records[0]["process_bytes"] > 2**20


def test_of_layers_that_move_where_there_is_no_room_one_of_each_kind_goes() -> None:
    model = Model()
    blocks = find_blocks(model)
    allocated: list[int] = []

    def move(module: Any) -> None:  # another format stands for another device
        def one(tensor: Any) -> Any:
            if tensor.dtype is not torch.float64:
                allocated.append(tensor.numel())
            return tensor.double()

        module._apply(one)

    move_one_of_each(blocks, move)
    assert len(allocated) == len(blocks[0].parameters)
    assert all(p.dtype is torch.float64 for block in blocks for p in block.parameters)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_state_of_an_optimizer_that_updated_nothing_is_tried(kind: Any) -> None:
    optimizer = kind([torch.nn.Parameter(torch.ones(3))], lr=0.1)
    assert _state_bytes(optimizer) == (8 if kind is torch.optim.AdamW else 0)
    assert not optimizer.state
