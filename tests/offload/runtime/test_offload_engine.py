"""What the engine does beside being exact: slots, overlap, figures, the order of updates."""

from __future__ import annotations

import cProfile
import gc
import pstats
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S

torch = pytest.importorskip("torch", reason="torch is not installed")

from offload_exactness import LAYERS, Model  # noqa: E402
from offload_loops import adamw, batch, loss_of, plain_step  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import tightship_offload as offload  # noqa: E402
from tightship_offload.backends.cpu import CpuBackend  # noqa: E402

pytestmark = pytest.mark.torch


class Watched(CpuBackend):
    """Counts allocations and lists the lanes' work."""

    def __init__(self, **options: Any) -> None:
        super().__init__(poison=True, deadline_s=PATIENCE_S, **options)
        self.allocated_bytes: list[int] = []
        self.slow_update_s = 0.0

    def device_buffer(self, size_bytes: int) -> Tensor:
        self.allocated_bytes.append(size_bytes)
        return super().device_buffer(size_bytes)

    def before_work(self, lane: str) -> None:
        if lane == "update":
            time.sleep(self.slow_update_s)


def windowed(window: int = 2, **options: Any) -> tuple[Any, Any, Watched]:
    torch.manual_seed(0)
    model, machine = Model(), Watched()
    optimizer = adamw(model.parameters())
    offload.apply(model, optimizer, window=window, backend=machine, **options)
    return model, optimizer, machine


def test_slots_are_allocated_once() -> None:
    model, optimizer, machine = windowed(3)
    machine.allocated_bytes.clear()
    for _ in range(5):
        plain_step(model, optimizer)
    engine = offload.engine_of(model)
    assert machine.allocated_bytes == []
    assert engine.pool.size_bytes == 3 * engine.layers[0].size_bytes


def test_a_layer_of_many_tensors_costs_the_host_no_more_for_each() -> None:
    """Experts are hundreds of tensors: to look through all of them for each one takes longer than to compute."""

    class Experts(nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(count))

        def forward(self, x: Tensor) -> Tensor:
            for expert in self.experts:
                x = x + expert(x)
            return x

    def calls_per_tensor(count: int) -> float:
        model = nn.Sequential(nn.Sequential(*(Experts(count) for _ in range(3))))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        offload.apply(model, optimizer, window=2, layers="0.*", backend=CpuBackend())
        with cProfile.Profile() as profile:
            model(torch.ones(1, 2)).sum().backward()
        offload.engine_of(model).remove()
        return pstats.Stats(profile).total_calls / (3 * count)

    assert calls_per_tensor(80) < 1.1 * calls_per_tensor(20)


def test_outside_of_its_turn_a_parameter_is_in_host_memory() -> None:
    model, optimizer, _ = windowed()
    engine = offload.engine_of(model)
    seen = []
    model.blocks[2].up.register_forward_hook(
        lambda *_: seen.append(
            [layer.is_part(block.down) for layer, block in zip(engine.layers, model.blocks, strict=True)]
        )
    )
    plain_step(model, optimizer)
    assert seen == [[False, False, True, False, False]]
    assert not any(layer.is_part(p.detach()) for layer in engine.layers for p in layer.parameters)


def test_each_layer_is_fetched_ahead_and_what_is_there_already_is_not_fetched_again() -> None:
    model, optimizer, _ = windowed(3)
    for _ in range(2):
        plain_step(model, optimizer)
    last = offload.engine_of(model).last
    assert last is not None
    # Forward brings all layers; backward finds the last three in their slots.
    assert (last.fetches, last.misses) == (LAYERS + LAYERS - 3, 0)
    layer = offload.engine_of(model).layers[0]
    assert last.h2d_bytes == last.fetches * layer.size_bytes
    used = sum(p.numel() * p.element_size() for p in layer.parameters if p is not model.blocks[0].unused)
    assert last.d2h_bytes == LAYERS * used
    assert last.step_ns > 0 and last.update_ns > 0


def test_step_returns_before_the_updates_and_the_next_forward_waits_only_for_its_own() -> None:
    model, optimizer, machine = windowed()
    plain_step(model, optimizer)
    model(batch())
    loss_of(model, batch()).backward()
    machine.slow_update_s = 0.1
    begun = time.perf_counter()
    optimizer.step()
    optimizer.zero_grad()
    assert time.perf_counter() - begun < 0.1 * LAYERS, "the updates take that long one after the other"
    done = {}
    engine = offload.engine_of(model)
    for index, block in enumerate(model.blocks):
        block.register_forward_pre_hook(
            lambda *_, at=index: done.update({at: [layer.updated.issued.is_set() for layer in engine.layers]})
        )
    model(batch())
    assert all(done[index][index] for index in range(LAYERS)), "a layer that computes is updated"
    assert not done[0][LAYERS - 1], "the last layer's update overlaps the first layer's forward"


def test_updates_come_in_the_order_of_the_next_forward() -> None:
    class Reversed(Model):
        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embedding(tokens)
            for block in reversed(self.blocks):
                x = block(x)
            return self.head(x)

    model = Reversed()
    optimizer = adamw(model.parameters())
    offload.apply(model, optimizer, window=2, backend=CpuBackend())
    engine = offload.engine_of(model)
    order: list[str] = []
    engine.updates.on_updated.append(lambda name, _: order.append(name))
    for _ in range(2):
        plain_step(model, optimizer)
    engine.drain()
    assert order == [f"blocks.{index}" for index in reversed(range(LAYERS))] * 2


@pytest.mark.parametrize(("form", "loops"), [({}, True), ({"fused": True}, False), ({"foreach": False}, False)])
def test_a_form_that_is_left_open_stays_what_it_is(form: dict[str, bool], loops: bool) -> None:
    model = Model()
    offload.apply(model, torch.optim.AdamW(model.parameters(), **form), window=2)
    assert offload.engine_of(model).updates.loops is loops


def test_average_of_the_weights_as_each_layer_is_updated() -> None:
    """EMA without waiting for all updates: the hook sees each layer's new weights, in the lane."""
    model, optimizer, _ = windowed()
    engine = offload.engine_of(model)
    averages = {p.data_ptr(): p.detach().clone() for layer in engine.layers for p in layer.shadows}

    def follow(name: str, updated: list[nn.Parameter]) -> None:
        with torch.no_grad():
            for parameter in updated:
                averages[parameter.data_ptr()].lerp_(parameter, 0.1)

    engine.updates.on_updated.append(follow)
    torch.manual_seed(0)
    twin = Model()
    twin_optimizer = adamw(twin.parameters())
    expected = {name: p.detach().clone() for name, p in twin.named_parameters()}
    seed = torch.get_rng_state()
    for _ in range(5):
        plain_step(model, optimizer)
    torch.set_rng_state(seed)
    for _ in range(5):
        plain_step(twin, twin_optimizer)
        for name, p in twin.named_parameters():
            expected[name].lerp_(p.detach(), 0.1)
    engine.drain()
    for name, p in model.named_parameters():
        if name.startswith("blocks") and "unused" not in name:
            assert averages[p.data_ptr()].equal(expected[name]), name


def test_figures_are_reported_at_each_step() -> None:
    model, optimizer, _ = windowed()
    reported = []
    offload.engine_of(model).on_step.append(reported.append)
    for _ in range(3):
        plain_step(model, optimizer)
    assert [stats.step for stats in reported] == [1, 2, 3]
    assert reported[2].as_dict()["h2d_bytes"] == reported[2].h2d_bytes > 0
    assert reported[2].wait_ns <= reported[2].step_ns


def test_threads_end_with_the_model() -> None:
    def threads() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("tightship-")}

    before = threads()
    model, optimizer, _ = windowed()
    plain_step(model, optimizer)
    mine = threads() - before
    assert sorted(thread.name for thread in mine) == ["tightship-d2h", "tightship-h2d", "tightship-update"]
    offload.engine_of(model).remove()
    assert not any(thread.is_alive() for thread in mine)
    model, optimizer, machine = windowed()
    plain_step(model, optimizer)
    mine = threads() - before
    del model, optimizer, machine
    gc.collect()
    for thread in mine:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("model", ["alive", "collected"])
def test_a_script_may_end_with_updates_on_their_way(tmp_path: Path, warm: tuple[str, ...], model: str) -> None:
    script = f"""
import gc, time, torch, tightship_offload as offload
from tightship_offload.backends.cpu import CpuBackend
class Slow(CpuBackend):
    def before_work(self, lane):
        time.sleep(0.05 if lane == "update" else 0)
def main():
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    offload.apply(model, optimizer, window=2, backend=Slow())
    offload.engine_of(model).updates.on_updated.append(lambda name, _: print(name, flush=True))
    model(torch.ones(1, 512)).sum().backward()
    optimizer.step()
    return model if "{model}" == "alive" else None
kept = main()
gc.collect()
"""
    (tmp_path / "script.py").write_text(script)
    ended = subprocess.run([*warm, str(tmp_path / "script.py")], capture_output=True, text=True, timeout=200)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.split() == [str(number) for number in range(8)]
