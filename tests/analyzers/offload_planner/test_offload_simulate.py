"""The simulation: small cases worked out by hand, exact accounts, and figures known from elsewhere."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

from tightship_analyzers.offload_planner.schedule import Choice, LayerWork, Links, Work, operations
from tightship_analyzers.offload_planner.simulate import simulate
from tightship_offload.plan.model import Bottleneck, Clipping, Placement, UpdateOrder, UpdateStart

SEED = int(os.environ.get("TIGHTSHIP_TEST_SEED", "20261120"))
LINKS = Links(h2d=10**9, d2h=10**9, h2d_duplex=10**9, d2h_duplex=10**9)
"""One byte takes one nanosecond."""
FREE = {"order": UpdateOrder.NEXT_USE, "start": UpdateStart.AFTER_STEP, "clipping": Clipping.NONE}


def layer(**changes: object) -> LayerWork:
    base = LayerWork(forward_ns=100, backward_ns=200, weight_bytes=50, gradient_bytes=10, update_ns=5)
    return replace(base, **changes)  # type: ignore[arg-type]


def test_everything_resident_and_updated_there_takes_what_it_computes() -> None:
    here = layer(placement=Placement.GPU_RESIDENT)
    work = Work(layers=(here,) * 4, before_forward_ns=7, after_backward_ns=3, rest_update_ns=11, between_steps_ns=2)
    result = simulate(work, LINKS, Choice(slots=1, prefetch=0, resident=frozenset(range(4)), **FREE))
    assert result.step_ns == 4 * (100 + 200 + 5) + 7 + 3 + 11 + 2
    assert result.h2d_bytes == result.d2h_bytes == 0
    assert result.bottleneck is Bottleneck.COMPUTE


def test_one_slot_alternates_transfer_and_computation() -> None:
    work = Work(layers=(layer(gradient_bytes=0),) * 3)
    result = simulate(work, LINKS, Choice(slots=1, prefetch=0, **FREE))
    # forward 3 × (50 + 100); in backward the last layer is still there, then 2 × (50 + 200)
    assert result.step_ns == 3 * (50 + 100) + 200 + 2 * (50 + 200)
    assert result.waits_ns[Bottleneck.H2D] == 5 * 50


def test_two_slots_hide_transfers_that_are_shorter_than_computation() -> None:
    work = Work(layers=(layer(gradient_bytes=0),) * 8)
    assert simulate(work, LINKS, Choice(slots=2, prefetch=1, **FREE)).step_ns == 8 * 300 + 50
    slow = Work(layers=(layer(gradient_bytes=0, weight_bytes=250),) * 8)
    # The link rests where nothing may be fetched: during the last forward and the first backward, for which both slots
    # hold what is needed, and during the last backward.
    result = simulate(slow, LINKS, Choice(slots=2, prefetch=1, **FREE))
    assert result.step_ns == (8 + 6) * 250 + (100 + 200) + 200
    assert result.bottleneck is Bottleneck.H2D
    assert result.h2d_bytes == 14 * 250 * result.steps


def test_updates_after_the_step_delay_the_next_forward_in_the_order_of_need() -> None:
    work = Work(layers=(layer(weight_bytes=0, gradient_bytes=1, update_ns=1000),) * 3)
    choice = Choice(slots=3, prefetch=2, **FREE)
    next_use = simulate(work, LINKS, choice)
    # Updates begin with the step, when the last gradient has arrived; each is followed by its layer's forward.
    assert next_use.step_ns == 3 * 200 + 1 + 3 * 1000 + 100
    as_ready = simulate(work, LINKS, replace(choice, order=UpdateOrder.AS_READY))
    assert as_ready.step_ns == 3 * 200 + 1 + 3 * 1000 + 3 * 100
    assert as_ready.bottleneck is Bottleneck.CPU_UPDATE


def test_updates_during_backward_overlap_it() -> None:
    work = Work(layers=(layer(weight_bytes=0, gradient_bytes=1, update_ns=150),) * 3)
    late = simulate(work, LINKS, Choice(slots=3, prefetch=2, **FREE))
    early = simulate(work, LINKS, Choice(slots=3, prefetch=2, **FREE | {"start": UpdateStart.DURING_BACKWARD}))
    assert late.step_ns == 3 * 200 + 1 + 3 * 150 + 100
    assert early.step_ns == 3 * 200 + 1 + 150 + 3 * 100


def test_exact_clipping_waits_for_the_last_gradient_and_then_for_the_norm() -> None:
    work = Work(layers=(layer(gradient_bytes=40, update_ns=0),) * 3, norm_ns=30)
    free = simulate(work, LINKS, Choice(slots=3, prefetch=2, **FREE))
    clipped = simulate(work, LINKS, Choice(slots=3, prefetch=2, **FREE | {"clipping": Clipping.EXACT}))
    assert clipped.waits_ns[Bottleneck.D2H] == free.waits_ns[Bottleneck.D2H] == 40 * clipped.steps
    assert clipped.waits_ns[Bottleneck.CLIPPING] == 30 * clipped.steps
    assert clipped.step_ns == free.step_ns + 30


def test_a_third_gradient_on_its_way_stops_backward() -> None:
    work = Work(layers=(layer(weight_bytes=0, gradient_bytes=1000, update_ns=0),) * 4)
    result = simulate(work, LINKS, Choice(slots=4, prefetch=3, **FREE))
    # The fourth backward begins when the first gradient has arrived; the rest follow it one after the other.
    assert result.step_ns == 4 * 100 + 200 + 4 * 1000
    assert result.bottleneck is Bottleneck.D2H


def test_links_slow_each_other_down_only_while_both_are_busy() -> None:
    half = Links(h2d=10**9, d2h=10**9, h2d_duplex=5 * 10**8, d2h_duplex=5 * 10**8)
    busy = Work(layers=(layer(weight_bytes=400, gradient_bytes=400, update_ns=0),) * 6)
    choice = Choice(slots=2, prefetch=1, **FREE)
    assert simulate(busy, half, choice).step_ns > simulate(busy, LINKS, choice).step_ns
    quiet = Work(layers=(layer(weight_bytes=400, gradient_bytes=0),) * 6)
    assert simulate(quiet, half, choice).step_ns == simulate(quiet, LINKS, choice).step_ns


def test_a_layer_stays_in_its_slot_where_backward_turns() -> None:
    work = Work(layers=(layer(),) * 5, micro_batches=2)
    _, loads = operations(work, Choice(slots=2, prefetch=1, **FREE), 1)
    assert [load.layer for load in loads] == [0, 1, 2, 3, 4, 2, 1, 0] * 2


def made(chance: random.Random) -> tuple[Work, Links, Choice]:
    count = chance.randint(1, 7)
    resident = frozenset(i for i in range(count) if chance.random() < 0.3)
    layers = []
    for number in range(count):
        placement = chance.choice([Placement.CPU, Placement.CPU, Placement.GPU_STREAMED])
        if number in resident and chance.random() < 0.5:
            placement = Placement.GPU_RESIDENT
        streamed = placement is Placement.GPU_STREAMED
        layers.append(
            LayerWork(
                forward_ns=chance.randint(0, 300),
                backward_ns=chance.randint(0, 600),
                weight_bytes=chance.randint(1, 500),
                gradient_bytes=chance.choice([0, chance.randint(1, 500)]),
                update_ns=chance.randint(0, 900),
                accumulate_ns=chance.randint(0, 50),
                stream_in_bytes=chance.randint(1, 900) if streamed else 0,
                stream_out_bytes=chance.randint(1, 900) if streamed else 0,
                placement=placement,
            )
        )
    start = chance.choice(list(UpdateStart))
    clipping = chance.choice([Clipping.NONE, Clipping.EXACT, Clipping.SPECULATIVE])
    if start is UpdateStart.DURING_BACKWARD and clipping is Clipping.EXACT:
        clipping = Clipping.SPECULATIVE
    work = Work(
        layers=tuple(layers),
        micro_batches=chance.randint(1, 3),
        before_forward_ns=chance.randint(0, 50),
        after_backward_ns=chance.randint(0, 50),
        rest_update_ns=chance.randint(0, 50),
        norm_ns=chance.randint(0, 50),
    )
    rate = chance.choice([3 * 10**8, 10**9, 7 * 10**9])
    links = Links(h2d=rate, d2h=rate, h2d_duplex=rate * 2 // 3, d2h_duplex=rate // 2, latency_ns=chance.choice([0, 9]))
    slots = chance.randint(1, count)
    order = chance.choice(list(UpdateOrder))
    return (
        work,
        links,
        Choice(
            slots=slots,
            prefetch=chance.randint(0, slots),
            resident=resident,
            order=order,
            start=start,
            clipping=clipping,
        ),
    )


def test_every_nanosecond_of_a_step_is_in_exactly_one_place() -> None:
    chance = random.Random(SEED)
    for number in range(400):
        work, links, choice = made(chance)
        result = simulate(work, links, choice)
        said = f"TIGHTSHIP_TEST_SEED={SEED}, case {number}: {work} {choice}"
        assert result.busy_ns[Bottleneck.COMPUTE] + sum(result.waits_ns.values()) == result.window_ns, said
        assert all(0 <= busy <= result.window_ns for busy in result.busy_ns.values()), said
        assert min(result.waits_ns.values()) >= 0, said


P = 201_000_000
FLOPS = 400e12
PCIE = 55 * 10**9


def share_of_no_offload(tokens: int, adam_params_per_s: float, order: UpdateOrder) -> float:
    """40 layers of 201 M parameters, bf16, 4 slots, updates during backward: the case of the reachable shares."""
    forward_ns = int(2 * P * tokens / FLOPS * 1e9)
    one = LayerWork(
        forward_ns=forward_ns,
        backward_ns=2 * forward_ns,
        weight_bytes=2 * P,
        gradient_bytes=2 * P,
        update_ns=int(P / adam_params_per_s * 1e9),
    )
    links = Links(h2d=PCIE, d2h=PCIE, h2d_duplex=PCIE, d2h_duplex=PCIE)
    choice = Choice(slots=4, prefetch=3, order=order, start=UpdateStart.DURING_BACKWARD, clipping=Clipping.NONE)
    return 40 * 3 * forward_ns / simulate(Work(layers=(one,) * 40), links, choice).step_ns


@pytest.mark.parametrize(
    ("tokens", "slow_host", "fast_host"), [(8192, 0.26, 0.86), (16384, 0.49, 1.0), (32768, 0.95, 1.0)]
)
def test_reachable_shares_agree_with_an_independent_simulation(tokens: int, slow_host: float, fast_host: float) -> None:
    """At 2 and at 7 G parameters/s of CPU Adam; the other simulation had no first and last transfer in its steps."""
    assert share_of_no_offload(tokens, 2e9, UpdateOrder.NEXT_USE) == pytest.approx(slow_host, abs=0.05)
    assert share_of_no_offload(tokens, 7e9, UpdateOrder.NEXT_USE) == pytest.approx(fast_host, abs=0.05)


def test_the_order_of_updates_brings_what_it_is_said_to() -> None:
    """16 k tokens, 4 G parameters/s: from 0.75 to 0.96 of the speed without offload."""
    assert share_of_no_offload(16384, 4e9, UpdateOrder.AS_READY) == pytest.approx(0.75, abs=0.03)
    assert share_of_no_offload(16384, 4e9, UpdateOrder.NEXT_USE) == pytest.approx(0.96, abs=0.03)
