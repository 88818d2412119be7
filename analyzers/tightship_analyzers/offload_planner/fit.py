"""Will it fit, and how fast? A profile on a machine, answered as plain data: the plan, what else there was, and how
memory and step time change with the window.

answer = fit(profile, hardware, constraints)
answer.refused or answer.plan      # one line, or the plan as YAML
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tightship_analyzers.offload_planner.candidate import Candidate, adam_rate
from tightship_analyzers.offload_planner.constraints import Constraints, limits_for, shortfalls
from tightship_analyzers.offload_planner.planner import Option
from tightship_analyzers.offload_planner.plans import Planned, interval_of, make_plan, prediction_of
from tightship_analyzers.offload_planner.profile import Profile
from tightship_analyzers.offload_planner.simulate import simulate
from tightship_analyzers.offload_planner.tables import alternative_of, heading
from tightship_offload.errors import PlanError
from tightship_offload.plan.explain import explain
from tightship_offload.plan.file import plan_text
from tightship_offload.plan.model import HardwareSpec
from tightship_platform.results.plan_answer import (
    PlanFit,
    PlanLimits,
    PlanMachine,
    PlanOption,
    StepTime,
    WindowCurve,
    WindowPoint,
    WithoutOffload,
)

MOST_POINTS = 24
"""Windows on the curve; of more slots than that, evenly spread ones."""

Report = Callable[[str], None]
"""Takes the stage that begins, in a few words."""


def fit(
    profile: Profile, hardware: HardwareSpec, constraints: Constraints, *, report: Report = lambda _: None
) -> PlanFit:
    """The plan for a model on a machine, or why there is none; the curve in either case."""
    report("trying windows")
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
        window = _window(base, constraints, timed=False)
        return replace(_subject(profile, hardware, constraints, window), refused=str(error))
    report("simulating every window")
    window = _window(_base_of(planned), constraints, timed=True)
    plan = planned.plan
    why = explain(plan)
    comment = [f"{heading(plan)}.", planned.change, *why, *profile.notes]
    return replace(
        _subject(profile, hardware, constraints, window),
        heading=f"{heading(plan)}.",
        change=planned.change or None,
        why=why,
        options=[_option(name, option) for name, option in planned.options.items()],
        plan=plan_text(plan, "\n".join(line for line in comment if line)),
        simulated=planned.simulated,
    )


def _subject(profile: Profile, hardware: HardwareSpec, constraints: Constraints, window: WindowCurve) -> PlanFit:
    """All that holds whether anything fits or not."""
    limits = limits_for(hardware, constraints)
    return PlanFit(
        model=profile.model.name,
        layers=len(profile.layers),
        parameters=sum(profile.model.layer_parameters) + profile.rest.parameters,
        origin=profile.origin.value,
        machine=PlanMachine(
            device=hardware.device,
            device_bytes=hardware.device_bytes,
            host_bytes=hardware.host_bytes,
            cores=hardware.cores,
            h2d_bytes_per_s=hardware.h2d_bytes_per_s,
            d2h_bytes_per_s=hardware.d2h_bytes_per_s,
            update_params_per_s=adam_rate(hardware, constraints.rules.threads),
        ),
        limits=PlanLimits(
            device_bytes=limits.device,
            device_by=limits.device_by,
            is_budget=limits.device == constraints.device_bytes,
            host_bytes=limits.host,
            host_by=limits.host_by,
        ),
        whole=_whole(profile, hardware, constraints),
        window=window,
        why=[],
        options=[],
        notes=list(profile.notes),
        simulated=0,
    )


def _whole(profile: Profile, hardware: HardwareSpec, constraints: Constraints) -> WithoutOffload:
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
    return WithoutOffload(
        device_bytes=one.memory.device,
        step=_step_time(one.no_offload_ns, profile),
        fits=not shortfalls(one.memory, limits_for(hardware, constraints)),
    )


def _option(name: str, option: Option) -> PlanOption:
    predicted = prediction_of(option)
    return PlanOption(
        name=name,
        **vars(alternative_of(option)),
        low_ns=round(predicted.step_ns.low),
        high_ns=round(predicted.step_ns.high),
        share_low=predicted.share_frac.low,
        share_high=predicted.share_frac.high,
        waits_ns=predicted.waits_ns,
        h2d_bytes=predicted.h2d_bytes,
        d2h_bytes=predicted.d2h_bytes,
    )


def _base_of(planned: Planned) -> Candidate:
    """What the curve keeps of the recommended window: its resident layers and its loop."""
    one = planned.options["recommended"].candidate
    if len(one.resident) < len(one.profile.layers):
        return one
    return replace(one, resident=frozenset(), gpu_resident=frozenset())  # all stay: the curve shows what a window is


def _window(base: Candidate, constraints: Constraints, *, timed: bool) -> WindowCurve:
    """Memory, and where anything fits the step time, of every window with the same resident layers and loop."""
    moving = len(base.profile.layers) - len(base.resident)
    windows = [replace(base, slots=slots, ahead=None) for slots in _counts(min(2, moving), moving, base.slots)]
    return WindowCurve(
        resident=len(base.resident),
        recompute=base.recompute.value,
        micro_batches=base.micro_batches,
        chosen=base.slots if timed else None,
        points=[_point(one, constraints, timed=timed) for one in windows],
    )


def _point(one: Candidate, constraints: Constraints, *, timed: bool) -> WindowPoint:
    step = None
    if timed:
        step = _step_time(simulate(one.work, one.links, one.choice).step_ns, one.profile)
    return WindowPoint(
        slots=one.slots,
        device_bytes=one.memory.device,
        host_bytes=one.memory.host,
        fits=not shortfalls(one.memory, limits_for(one.hardware, constraints)),
        step=step,
    )


def _step_time(ns: int, profile: Profile) -> StepTime:
    found = interval_of(ns, profile)
    return StepTime(ns=ns, low_ns=round(found.low), high_ns=round(found.high))


def _counts(least: int, most: int, chosen: int) -> list[int]:
    if most - least < MOST_POINTS:
        return list(range(least, most + 1))
    spread = {least + round(at * (most - least) / (MOST_POINTS - 1)) for at in range(MOST_POINTS)}
    return sorted(spread | ({chosen} if least <= chosen <= most else set()))
