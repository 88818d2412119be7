"""The lane that updates: what is ready goes in the order of next use, on the threads and cores of the plan."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from waiting import PATIENCE_S

torch = pytest.importorskip("torch", reason="torch is not installed")

from offload_exactness import LAYERS, Model  # noqa: E402
from offload_loops import adamw, batch, loss_of, plain_step  # noqa: E402

import tightship_offload as offload  # noqa: E402
from tightship_offload.backends.base import COMPUTE, Lane  # noqa: E402
from tightship_offload.backends.cpu import CpuBackend  # noqa: E402
from tightship_offload.errors import OffloadError  # noqa: E402
from tightship_offload.plan.capabilities import CORES_LEFT, update_threads  # noqa: E402
from tightship_offload.plan.host_limits import cores  # noqa: E402
from tightship_offload.plan.model import Clipping, ModelSpec, OptimizerPlan, Plan, UpdateOrder, UpdateStart  # noqa: E402
from tightship_offload.plan.model import Window as WindowPlan  # noqa: E402
from tightship_offload.runtime import update_lane  # noqa: E402
from tightship_offload.runtime.apply import describe  # noqa: E402
from tightship_offload.runtime.blocks import find_blocks  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def machine() -> Iterator[CpuBackend]:
    backend = CpuBackend(deadline_s=PATIENCE_S)
    yield backend
    backend.close()


# ---- the lane --------------------------------------------------------------------------------------------------------


def test_of_what_is_ready_the_lowest_place_is_first(machine: CpuBackend) -> None:
    lane = machine.lane("update", on_host=True, by_place=True)
    gate, done = threading.Event(), list[str]()
    lane.submit("gate", lambda: gate.wait(PATIENCE_S) and None)
    for name, place in (("d", 3), ("b", 1), ("c", 2), ("a", 0), ("b again", 1)):
        last = lane.submit(name, lambda name=name: done.append(name), place=place)
    gate.set()
    machine.reach(last, COMPUTE, on_host=True)
    lane.close()
    assert done == ["a", "b", "b again", "c", "d"]


def test_what_has_to_wait_is_overtaken(machine: CpuBackend) -> None:
    lane, other = machine.lane("update", on_host=True, by_place=True), machine.lane("d2h")
    begin, gate, done = threading.Event(), threading.Event(), list[str]()
    lane.submit("held", lambda: begin.wait(PATIENCE_S) and None)
    late = other.submit("late", lambda: gate.wait(PATIENCE_S) and None)
    first = lane.submit("first", lambda: done.append("first"), (late,), place=0)
    free = lane.submit("free", lambda: done.append("free"), place=5)
    begin.set()
    machine.reach(free, COMPUTE, on_host=True)
    assert done == ["free"]
    gate.set()
    machine.reach(first, COMPUTE, on_host=True)
    assert done == ["free", "first"]


def test_work_that_waits_for_other_work_of_the_lane_comes_after_it(machine: CpuBackend) -> None:
    lane = machine.lane("update", on_host=True, by_place=True)
    gate, done = threading.Event(), list[int]()
    mark = lane.submit("gate", lambda: gate.wait(PATIENCE_S) and None)
    for number in range(5):
        mark = lane.submit(str(number), lambda number=number: done.append(number), (mark,), place=-number)
    gate.set()
    lane.close()
    assert done == list(range(5))


def test_what_waits_for_a_failure_fails_and_the_rest_goes_on(machine: CpuBackend) -> None:
    lane = machine.lane("update", on_host=True, by_place=True)

    def fail() -> None:
        raise ValueError("no")

    broken = lane.submit("it", fail, place=1)
    after = lane.submit("what follows", lambda: None, (broken,), place=0)
    apart = lane.submit("another", lambda: None, place=2)
    with pytest.raises(OffloadError, match="it has failed with ValueError: no"):
        machine.reach(after, COMPUTE, on_host=True)
    machine.reach(apart, COMPUTE, on_host=True)


# ---- early updates ---------------------------------------------------------------------------------------------------


class Held(CpuBackend):
    """Updates wait at the gate."""

    gate: threading.Event | None = None

    def before_work(self, lane: str) -> None:
        if lane == "update" and self.gate is not None:
            self.gate.wait(PATIENCE_S)


def plan_for(model: Any, **optimizer: Any) -> Plan:
    spec: ModelSpec = describe(model, find_blocks(model, None))
    return Plan(model=spec, window=WindowPlan(slots=2), optimizer=OptimizerPlan(**optimizer))


@pytest.mark.parametrize(
    ("order", "expected"),
    [(UpdateOrder.NEXT_USE, [0, 1, 2, 3, 4]), (UpdateOrder.AS_READY, [4, 3, 2, 1, 0])],
)
def test_updates_of_a_backward_go_as_the_plan_says(
    order: UpdateOrder, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane has other work until all of them are ready, whenever it begins with it."""
    ran: list[str] = []
    do = Lane._do

    def recorded(lane: Lane, task: Any) -> None:
        ran.extend([task.mark.what] if lane.name == "update" else [])
        do(lane, task)

    monkeypatch.setattr(Lane, "_do", recorded)
    torch.manual_seed(0)
    model = Model()
    optimizer = adamw(model.parameters())
    machine = Held(deadline_s=PATIENCE_S)
    plan = plan_for(model, order=order, start=UpdateStart.DURING_BACKWARD, clipping=Clipping.NONE)
    offload.apply(model, optimizer, plan, backend=machine)
    engine = offload.engine_of(model)
    for _ in range(2):
        plain_step(model, optimizer)
    engine.drain()
    ran.clear()
    loss = loss_of(model, batch())
    machine.gate = threading.Event()
    engine.updates._lane.submit("other work", lambda: None)
    loss.backward()
    machine.gate.set()
    optimizer.step()
    engine.drain()
    assert ran == ["other work", *(f"the update of layer 'blocks.{index}'" for index in expected)]
    machine.close()


def test_after_the_step_as_ready_the_last_layer_is_first() -> None:
    model = Model()
    optimizer = adamw(model.parameters())
    offload.apply(model, optimizer, plan_for(model, order=UpdateOrder.AS_READY), backend=CpuBackend())
    order: list[str] = []
    offload.engine_of(model).updates.on_updated.append(lambda name, _: order.append(name))
    plain_step(model, optimizer)
    offload.engine_of(model).drain()
    assert order == [f"blocks.{index}" for index in reversed(range(LAYERS))]


# ---- threads and cores -----------------------------------------------------------------------------------------------


def test_the_lane_has_the_plans_threads_and_nobody_else_does(machine: CpuBackend) -> None:
    torch.set_num_threads(2)
    lane = update_lane.open_lane(machine, 1)
    seen: list[int] = []
    machine.reach(lane.submit("look", lambda: seen.append(torch.get_num_threads())), COMPUTE, on_host=True)
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert [*seen, torch.get_num_threads()] == [1, 2, 2]


def test_a_plans_threads_reach_the_lane() -> None:
    model = Model()
    optimizer = adamw(model.parameters())
    torch.set_num_threads(2)
    offload.apply(model, optimizer, plan_for(model, threads=1), backend=CpuBackend())
    seen: list[int] = []
    offload.engine_of(model).updates.on_updated.append(lambda *_: seen.append(torch.get_num_threads()))
    plain_step(model, optimizer)
    offload.engine_of(model).remove()
    assert set(seen) == {1}


def test_more_threads_than_cores_are_refused_before_anything_is_changed() -> None:
    model = Model()
    optimizer = adamw(model.parameters())
    before = [p.data_ptr() for p in model.parameters()]
    with pytest.raises(OffloadError, match=r"optimizer\.threads is 9999, and this process may run on \d+ cores; give"):
        offload.apply(model, optimizer, plan_for(model, threads=9999), backend=CpuBackend())
    assert [p.data_ptr() for p in model.parameters()] == before


def test_beside_an_accelerator_cores_are_left_free() -> None:
    assert update_threads(16, on_cpu=False) == 16 - CORES_LEFT
    assert update_threads(2, on_cpu=False) == 1
    assert update_threads(2, on_cpu=True) == 2
    torch.set_num_threads(1)
    assert update_lane.threads_for(None, on_cpu=True) == 1, "no more than torch has"
    assert update_lane.threads_for(cores(), on_cpu=False) == cores(), "a plan may ask for all"


def test_updates_keep_to_the_last_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 3, 5, 7})
    monkeypatch.setattr(update_lane, "cores", lambda: 4)
    assert update_lane.cores_for(1, on_cpu=False) == {7}
    assert update_lane.cores_for(3, on_cpu=False) == {3, 5, 7}
    assert update_lane.cores_for(4, on_cpu=False) is None
    assert update_lane.cores_for(1, on_cpu=True) is None
    monkeypatch.setattr(update_lane, "cores", lambda: 2)
    assert update_lane.cores_for(1, on_cpu=False) is None, "a quota says how many, not which"
    monkeypatch.setattr(update_lane, "cores", lambda: 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert update_lane.cores_for(1, on_cpu=False) is None, "ranks of one host would all take the same"


def test_the_lane_alone_is_kept_to_its_cores(machine: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = os.sched_getaffinity(0)
    kept = frozenset([max(allowed)])
    monkeypatch.setattr(update_lane, "cores_for", lambda threads, on_cpu: kept)
    lane = update_lane.open_lane(machine, 1)
    seen: list[set[int]] = []
    machine.reach(lane.submit("look", lambda: seen.append(os.sched_getaffinity(0))), COMPUTE, on_host=True)
    assert seen == [kept] and os.sched_getaffinity(0) == allowed
