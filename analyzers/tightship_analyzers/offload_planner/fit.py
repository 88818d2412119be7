"""Will it fit, and how fast? A profile on a machine, answered as plain data: the plan, what else there was, and how
memory and step time change with the window.

answer = fit(profile, hardware, constraints)
answer["refused"] or answer["plan"]      # one line, or the plan as YAML
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tightship_analyzers.offload_planner.candidate import Candidate, links_of
from tightship_analyzers.offload_planner.constraints import Constraints, limits_for, shortfalls
from tightship_analyzers.offload_planner.planner import Option
from tightship_analyzers.offload_planner.plans import Planned, interval_of, make_plan, prediction_of
from tightship_analyzers.offload_planner.profile import Profile
from tightship_analyzers.offload_planner.simulate import simulate
from tightship_analyzers.offload_planner.tables import heading, option_row
from tightship_offload.errors import PlanError
from tightship_offload.plan.explain import explain
from tightship_offload.plan.file import plan_text
from tightship_offload.plan.model import HardwareSpec

MOST_POINTS = 24
"""Windows on the curve; of more slots than that, evenly spread ones."""

Tell = Callable[[str], None]


def fit(
    profile: Profile, hardware: HardwareSpec, constraints: Constraints, *, tell: Tell = lambda _: None
) -> dict[str, Any]:
    """The answer; every key is there, null where there is nothing to say.

    Keys: model, layers, parameters, machine, limits, whole (the step without offload, and whether it fits), refused,
    heading, change, why, options, window (the curve), plan (YAML), notes, simulated.

    :param tell: told what is being done.
    """
    answer = _subject(profile, hardware, constraints)
    tell("trying windows")
    try:
        planned = make_plan(profile, hardware, constraints)
    except PlanError as error:
        base = Candidate(
            profile=profile,
            hardware=hardware,
            rules=constraints.rules,
            slots=2,
            recompute=constraints.recompute or profile.recompute,
            micro_batches=constraints.micro_batches or profile.micro_batches,
        )
        return answer | {"refused": str(error), "window": _window(base, constraints, timed=False)}
    tell("simulating every window")
    return answer | _planned(planned, profile) | {"window": _window(_base_of(planned), constraints, timed=True)}


def _subject(profile: Profile, hardware: HardwareSpec, constraints: Constraints) -> dict[str, Any]:
    limits = limits_for(hardware, constraints)
    return {
        "model": profile.model.name,
        "layers": len(profile.layers),
        "parameters": sum(profile.model.layer_parameters) + profile.rest.parameters,
        "origin": profile.origin.value,
        "machine": hardware.as_mapping(),
        "limits": {
            "device_bytes": limits.device,
            "device_by": limits.device_by,
            "is_budget": limits.device == constraints.device_bytes,
            "host_bytes": limits.host,
            "host_by": limits.host_by,
        },
        "whole": _whole(profile, hardware, constraints),
        "refused": None,
        "heading": None,
        "change": None,
        "why": [],
        "options": [],
        "plan": None,
        "notes": list(profile.notes),
        "simulated": 0,
    }


def _whole(profile: Profile, hardware: HardwareSpec, constraints: Constraints) -> dict[str, Any]:
    """The loop as it is, everything on the device."""
    every = frozenset(range(len(profile.layers)))
    one = Candidate(
        profile=profile,
        hardware=hardware,
        rules=constraints.rules,
        slots=1,
        resident=every,
        gpu_resident=every,
        recompute=profile.recompute,
        micro_batches=profile.micro_batches,
    )
    step = interval_of(one.no_offload_ns, profile)
    memory = one.memory
    return {
        "device_bytes": memory.device,
        "step_ns": step.value,
        "low_ns": step.low,
        "high_ns": step.high,
        "fits": not shortfalls(memory, limits_for(hardware, constraints)),
    }


def _planned(planned: Planned, profile: Profile) -> dict[str, Any]:
    plan = planned.plan
    why = explain(plan)
    comment = [f"{heading(plan)}.", planned.change, *why, *profile.notes]
    return {
        "heading": f"{heading(plan)}.",
        "change": planned.change or None,
        "why": why,
        "options": [_option(name, option) for name, option in planned.options.items()],
        "plan": plan_text(plan, "\n".join(line for line in comment if line)),
        "simulated": planned.simulated,
    }


def _option(name: str, option: Option) -> dict[str, Any]:
    predicted = prediction_of(option)
    return {
        "name": name,
        **option_row(option),
        "low_ns": predicted.step_ns.low,
        "high_ns": predicted.step_ns.high,
        "share_low": predicted.share_frac.low,
        "share_high": predicted.share_frac.high,
        "waits_ns": predicted.waits_ns,
        "h2d_bytes": predicted.h2d_bytes,
        "d2h_bytes": predicted.d2h_bytes,
    }


def _base_of(planned: Planned) -> Candidate:
    """What the curve keeps of the recommended window: its resident layers and its loop."""
    one = planned.options["recommended"].candidate
    if len(one.resident) < len(one.profile.layers):
        return one
    return replace(one, resident=frozenset(), gpu_resident=frozenset())  # all stay: the curve shows what a window is


def _window(base: Candidate, constraints: Constraints, *, timed: bool) -> dict[str, Any]:
    """Memory, and where anything fits the step time, of every window with the same resident layers and loop."""
    limits = limits_for(base.hardware, constraints)
    moving = len(base.profile.layers) - len(base.resident)
    points = []
    for slots in _counts(min(2, moving), moving, base.slots):
        one = replace(base, slots=slots, ahead=None)
        point: dict[str, Any] = {
            "slots": slots,
            "device_bytes": one.memory.device,
            "host_bytes": one.memory.host,
            "fits": not shortfalls(one.memory, limits),
            "step_ns": None,
            "low_ns": None,
            "high_ns": None,
        }
        if timed:
            step = interval_of(simulate(one.work, links_of(one.hardware), one.choice).step_ns, one.profile)
            point |= {"step_ns": step.value, "low_ns": step.low, "high_ns": step.high}
        points.append(point)
    return {
        "resident": len(base.resident),
        "recompute": base.recompute.value,
        "micro_batches": base.micro_batches,
        "chosen": base.slots if timed else None,
        "points": points,
    }


def _counts(least: int, most: int, chosen: int) -> list[int]:
    if most - least < MOST_POINTS:
        return list(range(least, most + 1))
    spread = {least + round(at * (most - least) / (MOST_POINTS - 1)) for at in range(MOST_POINTS)}
    return sorted(spread | ({chosen} if least <= chosen <= most else set()))
