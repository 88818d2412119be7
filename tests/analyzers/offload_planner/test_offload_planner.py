"""The planner's choice against every choice there is, and what it says when nothing fits."""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import replace

import pytest

from tightship_analyzers.offload_planner.candidate import LOOP_COST, Candidate, Rules, links_of
from tightship_analyzers.offload_planner.constraints import Constraints, Limits, limits_for, shortfalls
from tightship_analyzers.offload_planner.planner import search
from tightship_analyzers.offload_planner.profile import LayerCost, Origin, Profile, RestCost, UpdateForm, levelled
from tightship_analyzers.offload_planner.simulate import simulate
from tightship_offload.errors import PlanError
from tightship_offload.plan.capabilities import RUNTIME
from tightship_offload.plan.host_limits import HostLimits
from tightship_offload.plan.model import Clipping, Dtype, HardwareSpec, ModelSpec, Precision, Recompute, UpdateStart

MIB = 2**20
SEED = int(os.environ.get("TIGHTSHIP_TEST_SEED", "20261120"))
PROFILES = 40


def made_profile(chance: random.Random, layers: int | None = None, batch: int = 1) -> Profile:
    """Uneven layers, sometimes one of them frozen, compute and transfers of the same order."""
    costs = []
    uneven = chance.choice([0.0, 0.3, 1.0])
    for _ in range(layers or chance.randint(4, 9)):
        size = round(8e6 * (1 + uneven * chance.uniform(-0.8, 2)))
        forward_ns = round(4e6 * chance.choice([0.3, 1, 3]) * (1 + uneven * chance.uniform(-0.5, 1)))
        costs.append(
            LayerCost(
                forward_ns=forward_ns,
                backward_ns=2 * forward_ns,
                parameters=size,
                trainable=0 if chance.random() < 0.1 else size,
                activation_bytes=chance.randint(1, 40) * MIB,
                input_bytes=MIB,
            )
        )
    return Profile(
        model=ModelSpec(name="Made", layer_parameters=tuple(cost.parameters for cost in costs)),
        layers=tuple(costs),
        rest=RestCost(after_forward_ns=10**6, parameters=10**6, trainable=10**6, activation_bytes=8 * MIB),
        precision=chance.choice([Precision(), Precision(weights=Dtype.BF16, gradients=Dtype.BF16)]),
        batch=batch,
        origin=Origin.MEASURED,
    )


def made_hardware(chance: random.Random) -> HardwareSpec:
    h2d, d2h = chance.uniform(1e9, 12e9), chance.uniform(1e9, 12e9)
    duplex = chance.uniform(0.5, 1)
    return HardwareSpec(
        device="Made",
        device_bytes=1024 * MIB,
        host_bytes=8192 * MIB,
        cores=8,
        h2d_bytes_per_s=h2d,
        d2h_bytes_per_s=d2h,
        h2d_duplex_bytes_per_s=h2d * duplex,
        d2h_duplex_bytes_per_s=d2h * duplex,
        adam_params_per_s={1: chance.uniform(2e8, 1e9), 8: chance.uniform(1e9, 4e9)},
        device_adam_params_per_s=chance.choice([None, 2e10]),
    )


def every_choice(profile: Profile, hardware: HardwareSpec, constraints: Constraints, limits: Limits) -> int:
    """The shortest step over all windows, all sets of resident layers, their placements and recomputation."""
    count = len(profile.layers)
    best = None
    for size in range(count + 1):
        for resident in map(frozenset, itertools.combinations(range(count), size)):
            placements = [resident, *([frozenset[int]()] if constraints.residents_on_cpu else [])]
            moving = max(1, count - size)
            for slots, placed, recompute in itertools.product(range(min(2, moving), moving + 1), placements, Recompute):
                candidate = Candidate(
                    profile=profile,
                    hardware=hardware,
                    rules=constraints.rules,
                    slots=slots,
                    resident=resident,
                    gpu_resident=placed,
                    recompute=recompute,
                )
                if shortfalls(candidate.memory, limits):
                    continue
                # No schedule is shorter than the bound: what cannot be the best need not be simulated.
                if best is not None and candidate.bound_ns >= best:
                    continue
                step_ns = simulate(candidate.work, links_of(hardware), candidate.choice).step_ns
                best = step_ns if best is None else min(best, step_ns)
    assert best is not None
    return best


@pytest.mark.sliced(12)
@pytest.mark.parametrize("number", range(PROFILES))
def test_the_recommendation_is_within_two_percent_of_the_best_of_all(number: int) -> None:
    chance = random.Random(SEED * 1000 + number)
    profile, hardware = made_profile(chance), made_hardware(chance)
    rules = chance.choice([Rules(), Rules(clipping=Clipping.NONE, start=UpdateStart.DURING_BACKWARD)])
    least = Candidate(profile=profile, hardware=hardware, slots=2, recompute=Recompute.LAYER).memory.device
    constraints = Constraints(
        device_bytes=round(least * chance.uniform(1.05, 2.5)), residents_on_cpu=chance.random() < 0.5, rules=rules
    )
    found = search(profile, hardware, constraints)
    best = every_choice(profile, hardware, constraints, found.limits)
    assert found.recommended.step_ns <= best * 1.02, f"TIGHTSHIP_TEST_SEED={SEED}, profile {number}"
    assert not shortfalls(found.recommended.candidate.memory, found.limits)


def test_nothing_simulates_faster_than_its_bound() -> None:
    chance = random.Random(SEED)
    for _ in range(150):
        profile, hardware = made_profile(chance, batch=4), made_hardware(chance)
        count = len(profile.layers)
        resident = frozenset(chance.sample(range(count), chance.randint(0, count)))
        streamed = frozenset(chance.sample(sorted(set(range(count)) - resident), (count - len(resident)) // 2))
        start = chance.choice(list(UpdateStart))
        candidate = Candidate(
            profile=profile,
            hardware=hardware,
            rules=Rules(
                start=start, clipping=Clipping.NONE if start is UpdateStart.DURING_BACKWARD else Clipping.EXACT
            ),
            slots=chance.randint(2, count),
            resident=resident,
            gpu_resident=chance.choice([frozenset[int](), resident]),
            gpu_streamed=streamed,
            recompute=chance.choice(list(Recompute)),
            micro_batches=chance.choice([1, 2, 4]),
        )
        result = simulate(candidate.work, links_of(hardware), candidate.choice)
        assert result.step_ns >= candidate.bound_ns - 10 * count  # a link rounds each transfer up to whole ns
        assert result.step_ns >= candidate.compute_ns


def test_more_device_memory_never_makes_the_recommendation_slower() -> None:
    chance = random.Random(SEED)
    for _ in range(4):
        profile, hardware = made_profile(chance, layers=6), made_hardware(chance)
        least = Candidate(profile=profile, hardware=hardware, slots=2, recompute=Recompute.LAYER).memory.device
        steps = [
            search(profile, hardware, Constraints(device_bytes=round(least * more))).fastest.step_ns
            for more in (1.05, 1.3, 1.8, 3)
        ]
        for tighter, wider in itertools.pairwise(steps):
            assert wider <= tighter * 1.001


def test_what_fits_needs_no_change_of_the_loop() -> None:
    profile, hardware = made_profile(random.Random(1), batch=8), made_hardware(random.Random(1))
    found = search(profile, hardware)
    assert found.recommended.candidate.micro_batches == profile.micro_batches
    assert found.smallest.candidate.memory.device <= found.recommended.candidate.memory.device
    assert found.fastest.step_ns <= found.recommended.step_ns <= found.fastest.step_ns * 1.005


def refused(profile: Profile, hardware: HardwareSpec, constraints: Constraints) -> str:
    with pytest.raises(PlanError) as caught:
        search(profile, hardware, constraints)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_refusal_names_what_binds_and_the_smallest_change() -> None:
    chance = random.Random(2)
    profile, hardware = made_profile(chance, layers=6, batch=8), made_hardware(chance)
    least = Candidate(profile=profile, hardware=hardware, slots=2, recompute=Recompute.LAYER, micro_batches=8)
    plain = Candidate(profile=profile, hardware=hardware, slots=2, recompute=Recompute.NONE)

    line = refused(profile, hardware, Constraints(device_bytes=least.memory.device - MIB))
    assert "device memory, and the device budget given allows" in line and "give 1.0 MiB more device memory" in line

    recomputing = Candidate(profile=profile, hardware=hardware, slots=2, recompute=Recompute.LAYER)
    constraints = Constraints(device_bytes=recomputing.memory.device, recompute=Recompute.NONE, micro_batches=1)
    assert plain.memory.device > recomputing.memory.device
    assert "--recompute layer" in refused(profile, hardware, constraints)

    constraints = Constraints(device_bytes=least.memory.device, micro_batches=1)
    assert "--micro-batches 8" in refused(profile, hardware, constraints)

    line = refused(profile, hardware, Constraints(host_bytes=recomputing.memory.host - MIB, resident=()))
    assert "host memory, and the host budget given" in line and "1.0 MiB more host memory" in line

    constraints = Constraints(
        slots=6, device_bytes=Candidate(profile=profile, hardware=hardware, slots=4).memory.device
    )
    assert "take 4 slots instead of 6" in refused(
        profile,
        hardware,
        Constraints(slots=6, device_bytes=constraints.device_bytes, recompute=Recompute.NONE, micro_batches=1),
    )
    constraints = Constraints(
        slots=2,
        resident=(0, 1, 2, 3),
        recompute=Recompute.NONE,
        micro_batches=1,
        device_bytes=Candidate(
            profile=profile, hardware=hardware, slots=2, resident=frozenset({0, 1}), gpu_resident=frozenset({0, 1})
        ).memory.device,
    )
    assert "keep 2 layers resident instead of 4" in refused(profile, hardware, constraints)


def test_every_change_that_a_refusal_names_suffices() -> None:
    chance = random.Random(SEED)
    profile, hardware = made_profile(chance, layers=5, batch=4), made_hardware(chance)
    least = Candidate(profile=profile, hardware=hardware, slots=2, recompute=Recompute.LAYER, micro_batches=4).memory
    line = refused(profile, hardware, Constraints(device_bytes=least.device - 1))
    assert "1 B more device memory" in line
    search(profile, hardware, Constraints(device_bytes=least.device))
    # Several micro-batches take host memory for the buffers in which their gradients cross.
    host = Candidate(profile=profile, hardware=hardware, slots=2, recompute=Recompute.LAYER).memory.host
    line = refused(profile, hardware, Constraints(host_bytes=host - 1, resident=()))
    assert "1 B more host memory" in line
    search(profile, hardware, Constraints(host_bytes=host, resident=()))


@pytest.mark.parametrize("resident", [frozenset[int](), frozenset({1})])
def test_beside_a_gpu_what_does_not_move_is_written_a_tensor_at_a_time(resident: frozenset[int]) -> None:
    chance = random.Random(SEED)
    profile, hardware = made_profile(chance), made_hardware(chance)

    def host(device: str) -> int:
        on = replace(hardware, device=device)
        placed = {"resident": resident, "gpu_resident": resident}
        return Candidate(profile=profile, hardware=on, slots=2, in_files=True, **placed).memory.host

    largest = max([profile.rest.parameters, *(profile.layers[i].parameters for i in resident)])
    assert host("Made") - host("cpu") == largest * profile.precision.master.bytes


def test_the_hosts_limits_bind_by_name() -> None:
    chance = random.Random(3)
    profile, hardware = made_profile(chance), made_hardware(chance)
    group = HostLimits(total=10**12, available=10**11, cgroup=10**8, cgroup_free=10**8, memlock=None)
    assert "control group's memory limit less 10 %" in refused(profile, hardware, Constraints(host=group, resident=()))
    full = HostLimits(total=10**12, available=10**7, cgroup=None, cgroup_free=None, memlock=None)
    assert "host's available memory less 10 %" in refused(profile, hardware, Constraints(host=full, resident=()))
    locked = HostLimits(total=10**12, available=10**12, cgroup=None, cgroup_free=None, memlock=65536)
    other = replace(hardware, device="AMD Instinct MI300X")
    line = refused(profile, other, Constraints(host=locked, resident=()))
    assert "memlock limit (ulimit -l) allows 64.0 KiB" in line and "--pinned-budget" in line
    assert limits_for(other, Constraints(host=locked, pinned_bytes=10**12)).pinned == 10**12


def test_memory_that_nvidias_driver_pins_is_not_held_against_memlock() -> None:
    chance = random.Random(3)
    profile, hardware = made_profile(chance), replace(made_hardware(chance), device="NVIDIA H200")
    locked = HostLimits(total=10**12, available=10**12, cgroup=None, cgroup_free=None, memlock=65536)
    assert limits_for(hardware, Constraints(host=locked)).pinned is None
    search(profile, hardware, Constraints(host=locked, resident=()))


def test_a_limit_that_a_setting_lifts_is_named_before_memory_that_is_not_there() -> None:
    """Nothing resident needs pinned memory, everything resident a larger device: the first is to be had."""
    chance = random.Random(SEED)
    profile = made_profile(chance, layers=5, batch=4)
    hardware = replace(made_hardware(chance), device="AMD Instinct MI300X")
    least = Candidate(profile=profile, hardware=hardware, slots=2, recompute=Recompute.LAYER, micro_batches=4).memory
    locked = HostLimits(total=10**12, available=10**12, cgroup=None, cgroup_free=None, memlock=65536)
    search(profile, hardware, Constraints(device_bytes=least.device, pinned_bytes=10**13))
    line = refused(profile, hardware, Constraints(device_bytes=least.device, host=locked))
    assert "of pinned memory, and the memlock limit (ulimit -l) allows 64.0 KiB" in line


def test_noise_between_like_layers_is_levelled() -> None:
    one = made_profile(random.Random(1)).layers[0]
    layers = [replace(one, forward_ns=ns, backward_ns=2 * ns) for ns in (100, 110, 90, 100, 300)]
    level = levelled([*layers, replace(one, parameters=one.parameters + 1, trainable=0, forward_ns=77)])
    assert [layer.forward_ns for layer in level] == [100, 100, 100, 100, 300, 77]
    assert [layer.backward_ns for layer in level[:5]] == [200, 200, 200, 200, 600]


def test_updates_by_a_loop_are_charged_for_unless_they_are_fused_on_request() -> None:
    chance = random.Random(SEED)
    profile, machine = made_profile(chance), made_hardware(chance)
    machine = replace(machine, loop_adam_params_per_s=machine.adam_params_per_s[1] / 4)

    def update_ns(form: UpdateForm, hardware: HardwareSpec = machine, *, fused: bool = False) -> int:
        one = Candidate(
            profile=replace(profile, update_form=form, precision=Precision()),
            hardware=hardware,
            rules=Rules(fused=fused, threads=8),
            slots=2,
        )
        return max(layer.update_ns for layer in one.work.layers)

    quick = update_ns(UpdateForm.FUSED)
    assert update_ns(UpdateForm.OPEN, fused=True) == quick == update_ns(UpdateForm.FUSED, fused=True)
    unmeasured = replace(machine, loop_adam_params_per_s=None)
    assert update_ns(UpdateForm.OPEN, unmeasured) == pytest.approx(LOOP_COST * quick, rel=1e-6)
    slow = update_ns(UpdateForm.OPEN)
    assert quick < slow == update_ns(UpdateForm.LOOP) == update_ns(UpdateForm.LOOP, fused=True)


def test_buffers_in_which_gradients_add_up_are_pinned_beside_a_gpu_alone() -> None:
    chance = random.Random(SEED)
    profile, machine = made_profile(chance, batch=4), made_hardware(chance)
    profile = replace(profile, precision=Precision())

    def pinned(micro_batches: int, device: str) -> int:
        on = replace(machine, device=device)
        memory = Candidate(profile=profile, hardware=on, slots=2, micro_batches=micro_batches).memory
        assert memory.host - memory.pinned == sum(8 * layer.trainable for layer in profile.layers)
        return memory.pinned

    largest = 4 * max(layer.trainable for layer in profile.layers)
    assert pinned(2, "Made") - pinned(1, "Made") == RUNTIME.staging_buffers * largest > 0
    assert pinned(2, "cpu") == pinned(1, "cpu")
