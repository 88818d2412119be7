"""Will it fit, and how fast? Answers on made models, and machines that nobody measured."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
import yaml
from captured_workflow import GIB

from tightship_analyzers import hardware
from tightship_analyzers.offload_planner.answer import answer
from tightship_analyzers.offload_planner.assumed import (
    ASSUMED_SPREAD_FRAC,
    LINK_FRAC,
    NOTE,
    assumed_hardware,
    on_device,
)
from tightship_analyzers.offload_planner.constraints import Constraints
from tightship_analyzers.offload_planner.fit import MOST_POINTS, fit
from tightship_analyzers.offload_planner.plans import make_plan
from tightship_analyzers.offload_planner.profile import LayerCost, Origin, Profile, RestCost, parse_profile
from tightship_analyzers.offload_planner.request import MOST_PROFILE_BYTES, Request
from tightship_offload.errors import OffloadError, PlanError
from tightship_offload.plan.file import parse_plan
from tightship_offload.plan.model import Dtype, HardwareSpec, ModelSpec, Precision, Recompute

MIB = 2**20
H100, A100, T4 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "Tesla T4"
BUDGET = 5 * GIB
GIVEN = Constraints(slots=4, resident=(), recompute=Recompute.NONE, micro_batches=1)
"""Leaves nothing to search."""


def made(layers: int = 6, parameters: int = 200_000_000, **more: Any) -> Profile:
    """Like layers of a language model in bf16, 8 k tokens."""
    layer = LayerCost(
        forward_ns=20_000_000,
        backward_ns=40_000_000,
        parameters=parameters,
        trainable=parameters,
        activation_bytes=400 * MIB,
        input_bytes=40 * MIB,
    )
    given: dict[str, Any] = {"origin": Origin.MEASURED, "steps": 5} | more
    return Profile(
        model=ModelSpec(name="GPT", block="Block", layer_parameters=(parameters,) * layers, rest_parameters=10**6),
        layers=(layer,) * layers,
        rest=RestCost(after_forward_ns=10**7, parameters=10**6, trainable=10**6, activation_bytes=30 * MIB),
        precision=Precision(weights=Dtype.BF16, master=Dtype.FP32, gradients=Dtype.BF16),
        **given,
    )


def machine(name: str = H100, **more: Any) -> HardwareSpec:
    given: dict[str, Any] = {"device_bytes": None, "host_bytes": 256 * GIB, "cores": 16} | more
    return assumed_hardware(name, **given)


def text(profile: Profile) -> str:
    return yaml.safe_dump(profile.as_mapping())


def refused(request: Request) -> str:
    with pytest.raises(OffloadError) as caught:
        answer(request)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- the answer ------------------------------------------------------------------------------------------------------


def test_the_answer_is_the_planners() -> None:
    profile, constraints = made(), Constraints(device_bytes=BUDGET)
    found, planned = fit(profile, machine(), constraints), make_plan(profile, machine(), constraints)
    assert parse_plan(found.plan) == planned.plan
    names = [option.name for option in found.options]
    assert names[:4] == ["recommended", "fastest", "smallest", "most headroom"]
    chosen = found.options[0]
    assert chosen.low_ns < chosen.step_ns < chosen.high_ns
    assert chosen.device_bytes == planned.plan.prediction.device_bytes <= BUDGET  # type: ignore[union-attr]
    assert found.refused is None
    assert found.simulated > 4
    assert found.parameters == 6 * 200_000_000 + 10**6
    assert found.limits.device_by == "the device budget given"
    assert any("of the speed without offload" in line for line in found.why)
    json.dumps(asdict(found), allow_nan=False)


def test_the_curve_goes_through_the_chosen_window_and_grows() -> None:
    found = fit(made(), machine(), Constraints(device_bytes=BUDGET))
    window, chosen = found.window, found.options[0]
    points = window.points
    assert [point.slots for point in points] == list(range(2, 7 - window.resident))
    assert [point.device_bytes for point in points] == sorted({point.device_bytes for point in points})
    at = next(point for point in points if point.slots == window.chosen)
    assert (at.step and at.step.ns, at.device_bytes) == (chosen.step_ns, chosen.device_bytes)
    assert {point.fits for point in points} == {True, False}
    assert all(point.fits == (point.device_bytes <= BUDGET) for point in points)


def test_a_long_curve_has_few_points_and_both_ends() -> None:
    found = fit(made(80, 10_000_000), machine(), GIVEN)
    slots = [point.slots for point in found.window.points]
    assert len(slots) <= MOST_POINTS + 1
    assert (slots[0], slots[-1]) == (2, 80)
    assert found.window.chosen in slots


def test_what_fits_without_offload_is_said() -> None:
    assert fit(made(4, 1_000_000), machine(), Constraints()).whole.fits
    large = fit(made(60), machine(), GIVEN)
    assert not large.whole.fits
    assert large.whole.device_bytes > large.limits.device_bytes


def test_what_does_not_fit_is_refused_with_the_change_and_still_has_its_memory() -> None:
    found = fit(made(), machine(), Constraints(device_bytes=100 * MIB))
    assert "give" in found.refused
    assert (found.plan, found.heading, found.options) == (None, None, [])
    points = found.window.points
    assert not any(point.fits for point in points)
    assert {point.step for point in points} == {None}
    assert points[0].device_bytes < points[-1].device_bytes


# ---- machines that nobody measured -----------------------------------------------------------------------------------


def test_an_assumed_machine_rests_on_the_catalogue() -> None:
    known = hardware.find(H100)
    assert known is not None
    assumed = machine()
    assert assumed.h2d_bytes_per_s == LINK_FRAC * known.link_bytes_per_s["pcie"]
    assert assumed.device_bytes < known.memory_bytes
    assert machine(device_bytes=7).device_bytes == 7
    assert machine("cpu").device_bytes == 256 * GIB
    with pytest.raises(PlanError, match="No device named 'Voodoo 2' is known"):
        machine("Voodoo 2")
    with pytest.raises(PlanError, match="No link of"):
        machine("NVIDIA A100-PG509-200")


def test_times_on_another_device_lie_between_its_arithmetic_and_its_memory() -> None:
    profile = made()
    faster = on_device(profile, A100, H100)
    arithmetic, memory = 312 / 989.4, 2039 / 3350
    low, high = (profile.layers[0].forward_ns * factor for factor in (arithmetic, memory))
    assert low < faster.layers[0].forward_ns < high
    spread = faster.spread_frac
    assert faster.layers[0].forward_ns * (1 - spread) <= low
    assert high <= faster.layers[0].forward_ns * (1 + spread)
    assert any("Times were recorded on" in note for note in faster.notes)
    assert faster.rest.between_steps_ns == profile.rest.between_steps_ns
    assert on_device(profile, H100, H100) is profile


def test_a_cpus_times_say_nothing_of_a_gpu() -> None:
    for recorded, target in (("cpu", H100), (H100, "cpu")):
        with pytest.raises(PlanError, match="does not follow"):
            on_device(made(), recorded, target)
    with pytest.raises(PlanError, match="bf16 rate of 'Tesla T4' is not known"):
        on_device(made(), H100, T4)


# ---- requests --------------------------------------------------------------------------------------------------------


def test_a_request_with_a_profile() -> None:
    measured = replace(made(), hardware=machine(), spread_frac=0.05)
    found = answer(Request(profile=text(measured), budget_bytes=BUDGET))
    assert not found.assumed
    assert NOTE not in found.notes
    assert parse_plan(found.plan).hardware == measured.hardware
    assert parse_profile(found.profile) == parse_profile(json.dumps(measured.as_mapping())) == measured
    other = answer(Request(profile=text(measured), device=A100, cores=4, host_bytes=64 * GIB))
    assert other.assumed
    assert other.notes[-1] == NOTE
    assert (other.machine.device, other.machine.cores) == (A100, 4)
    chosen = other.options[0]
    assert chosen.high_ns >= int(chosen.step_ns * (1 + ASSUMED_SPREAD_FRAC))


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ("", "expected a mapping"),
        ("[1, 2]", "expected a mapping"),
        ("version: 2", "its version is 2; this release reads version 1"),
        ("{}", "its version is None"),
        ("a: &x [1]\nb: *x", "alias"),
        ("a: [" * 30, "nested more than"),
        ("!!python/object/apply:os.system ['true']", "no YAML"),
        ("version: 1\nversion: 1", "twice"),
        ("version: 1\nmodel: {name: x, layer_parameters: [1]}\nlayers: []\norigin: rumor", "profile.origin is 'rumor'"),
        ("\x00", "no YAML"),
        ('{"version": 1, "model": 5}', "no entry 'layers'"),
        ("x" * (MOST_PROFILE_BYTES + 1), "expected at most"),
        ("version: 1e999", "version"),
    ],
)
def test_a_hostile_profile_is_one_line(profile: str, words: str) -> None:
    assert words in refused(Request(profile=profile, device=H100, host_bytes=GIB, cores=1))


def test_a_request_that_leaves_the_machine_open() -> None:
    bare = text(made())
    found = answer(Request(profile=bare, device=H100, host_bytes=64 * GIB, cores=8, budget_bytes=MIB))
    assert f"The device on which the times were measured is unknown; {H100} is assumed." in found.notes
    assert "choose a GPU" in refused(Request(profile=bare))
    assert "give both" in refused(Request(profile=bare, device=H100, host_bytes=GIB))
    assert "No device named" in refused(Request(profile=bare, device="x'\u202e", host_bytes=GIB, cores=1))
