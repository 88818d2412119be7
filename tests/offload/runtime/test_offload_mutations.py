"""Defects that order nothing on a machine whose work is done when it is issued: the asynchronous backend shows each.

Every mutation takes one wait away, puts it in the wrong place, or gives memory out too early. What is not mutated is
the same to the bit under the same conditions. (The race detector is off where it would see the mutation first.)
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import pytest
from waiting import PATIENCE_S

torch = pytest.importorskip("torch", reason="torch is not installed")

import offload_loops  # noqa: E402
import offload_streams  # noqa: E402
from offload_async import AsyncBackend  # noqa: E402
from offload_exactness import LAYERS, Case, Model, Training, differences, reference, windowed  # noqa: E402
from offload_loops import adamw, batch, each_step, loss_of, plain_step, same  # noqa: E402
from offload_machines import Running  # noqa: E402
from torch import Tensor  # noqa: E402

import tightship_offload as offload  # noqa: E402
from tightship_offload.backends.base import COMPUTE, Lane  # noqa: E402
from tightship_offload.runtime.gradients import Gradients  # noqa: E402
from tightship_offload.runtime.layer import lay_out  # noqa: E402
from tightship_offload.runtime.slots import Slot, SlotPool  # noqa: E402
from tightship_offload.runtime.window import Window  # noqa: E402

pytestmark = pytest.mark.torch
STEPS = 3
Mutation = Callable[[pytest.MonkeyPatch], None]


def without_order(lane: str, place: int) -> Mutation:
    """One of the marks that a lane's work comes after is left out."""

    def mutate(monkeypatch: pytest.MonkeyPatch) -> None:
        submit = Lane.submit

        def hasty(self: Lane, what: str, work: Any, after: Any = (), *, place: int = 0) -> Any:
            kept = [mark for at, mark in enumerate(after) if at != place]
            return submit(self, what, work, kept if self.name == lane else after, place=place)

        monkeypatch.setattr(Lane, "submit", hasty)

    return mutate


def computing_before_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_for(self: Window, slot: Slot, layer: Any) -> None:
        assert slot.arrived is not None
        slot.arrived.issued.wait(PATIENCE_S)  # the copy is in its stream, and the computation does not come after it

    monkeypatch.setattr(Window, "_wait_for", wait_for)


def given_out_when_use_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    hold, drop, begun = Window._hold, Window._drop, {}

    def holding(self: Window, index: int) -> None:
        hold(self, index)
        begun[index] = self._backend.mark("the computation is about to begin")

    def dropping(self: Window, index: int) -> None:
        slot = self.pool.of_layer(index)
        drop(self, index)
        if slot is not None and not slot.holders:
            slot.released = begun[index]

    monkeypatch.setattr(Window, "_hold", holding)
    monkeypatch.setattr(Window, "_drop", dropping)


def landed_when_issued(monkeypatch: pytest.MonkeyPatch) -> None:
    def land(self: Gradients) -> None:
        mark, _ = self._flying.popleft()
        self._backend.reach(mark, COMPUTE, on_host=False)

    monkeypatch.setattr(Gradients, "_land", land)


def let_go_when_issued(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = Gradients._submit

    def hasty(self: Gradients, index: int) -> None:
        submit(self, index)
        self._flying = deque((mark, []) for mark, _ in self._flying)

    monkeypatch.setattr(Gradients, "_submit", hasty)


MUTATIONS: list[tuple[str, Mutation, dict[str, float]]] = [
    ("a copy does not wait for the computation in its slot", without_order("h2d", 0), {"h2d": 1.0}),
    ("a copy does not wait for the update", without_order("h2d", 1), {"h2d": 1.0}),
    ("gradients do not wait for backward", without_order("d2h", 0), {"d2h": 1.0}),
    ("the computation does not wait for the copy", computing_before_arrival, {COMPUTE: 1.0}),
    ("a slot is given out when its use begins", given_out_when_use_begins, {"h2d": 1.0}),
    ("the host does not wait for gradients, the stream does", landed_when_issued, {}),
    ("gradients are let go before they have arrived", let_go_when_issued, {}),
]


@pytest.mark.parametrize(("mutate", "prompt"), [row[1:] for row in MUTATIONS], ids=[row[0] for row in MUTATIONS])
def test_a_wait_that_is_missing_or_in_the_wrong_place_is_caught(
    monkeypatch: pytest.MonkeyPatch, mutate: Mutation, prompt: dict[str, float]
) -> None:
    case = Case(training=Training(clipping=True), window=3, seed=5)
    conditions: dict[str, Any] = {"prefetch": 1, "kind": "async", "ledger": None, "prompt": prompt, "delay_s": 0.003}
    expected = reference(case.training, STEPS)
    assert differences(expected, windowed(case, STEPS, **conditions)[0]) == []
    mutate(monkeypatch)
    assert differences(expected, windowed(case, STEPS, **conditions)[0]) != []


def test_an_update_that_waits_for_its_gradients_on_a_stream_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The race detector does not see it: waited for is waited for."""
    monkeypatch.setattr(Running, "kind", "async")
    monkeypatch.setattr(offload_streams, "_PROMPT", (0.0,))
    monkeypatch.setattr(offload_loops, "STEPS", 4)
    same(each_step(plain_step), early=offload.EarlyUpdates())
    start = Lane.__init__
    monkeypatch.setattr(
        Lane, "__init__", lambda self, *args, on_host, **more: start(self, *args, on_host=False, **more)
    )
    with pytest.raises(AssertionError):
        same(each_step(plain_step), early=offload.EarlyUpdates())


def host_waits() -> tuple[int, Counter[str]]:
    """How much of a forward was done when all of it was issued, and how often each lane made the host wait in it and in
    the backward that follows."""
    with AsyncBackend(prompt={}, deadline_s=PATIENCE_S).computing() as backend:
        model: Any = Model()
        offload.apply(model, adamw(model.parameters()), window=3, backend=backend)
        done = backend.streams.ran
        loss = loss_of(model, batch())
        done = backend.streams.ran - done
        loss.backward()
        return done, backend.host_waits


def on_host(name: str) -> Mutation:
    def mutate(monkeypatch: pytest.MonkeyPatch) -> None:
        start = Lane.__init__

        def starting(self: Lane, backend: Any, lane: str, *, on_host: bool, by_place: bool) -> None:
            start(self, backend, lane, on_host=on_host or lane == name, by_place=by_place)

        monkeypatch.setattr(Lane, "__init__", starting)

    return mutate


def arrival_on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_for(self: Window, slot: Slot, layer: Any) -> None:
        assert slot.arrived is not None
        self._backend.reach(slot.arrived, COMPUTE, on_host=True)

    monkeypatch.setattr(Window, "_wait_for", wait_for)


def test_the_host_runs_ahead_of_the_device() -> None:
    done, waits = host_waits()
    assert done == 0
    assert waits["h2d"] == waits["d2h"] == 0
    assert waits[COMPUTE] <= LAYERS, "for the gradients of each layer"


@pytest.mark.parametrize("mutate", [on_host("h2d"), on_host("d2h"), arrival_on_host], ids=["h2d", "d2h", "compute"])
def test_a_wait_on_the_host_where_one_on_the_stream_would_do_is_caught(
    monkeypatch: pytest.MonkeyPatch, mutate: Mutation
) -> None:
    mutate(monkeypatch)
    done, waits = host_waits()
    assert done > 0 or waits["h2d"] + waits["d2h"] > 0


class Recycling(AsyncBackend):
    """Its allocator gives memory that work on its way still uses, as CUDA's does within a stream."""

    def __init__(self, blocks: int, size_bytes: int) -> None:
        super().__init__(prompt={"h2d": 1.0}, deadline_s=PATIENCE_S)
        self.freed = [super(Recycling, self).device_buffer(size_bytes) for _ in range(blocks)]
        self._asked = 0

    def device_buffer(self, size_bytes: int) -> Tensor:
        self._asked += 1
        return super().device_buffer(size_bytes) if self._asked <= LAYERS else self.freed.pop()


@pytest.mark.parametrize("ordered", [True, False])
def test_a_first_copy_that_does_not_wait_for_what_was_queued_before_is_caught(
    monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    if not ordered:
        make = SlotPool.__init__

        def unordered(self: SlotPool, *args: Any) -> None:
            make(self, *args)
            for slot in self.slots:
                slot.released = None

        monkeypatch.setattr(SlotPool, "__init__", unordered)
    model: Any = Model()
    _, size_bytes = lay_out([p.detach() for p in model.blocks[0].parameters()])
    with Recycling(2, size_bytes).computing() as backend:
        backend.are_on_host(model.blocks.parameters())
        used = [block.view(torch.float32) for block in backend.freed]
        for block in used:
            block.fill_(2.0)
        backend.synchronize(COMPUTE)
        done, found = backend.streams.ran, [block * 3 for block in used]
        offload.apply(model, torch.optim.SGD(model.parameters()), window=2, backend=backend)
        assert backend.streams.ran == done, "nothing has waited for them yet"
        model(batch())
        right = [bool((one == 6.0).all()) for one in found]
    assert all(right) if ordered else not all(right)
