"""From what the search found to the plan that a job can run, and the table of its alternatives."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tightship_analyzers.offload_planner.candidate import Candidate, Rules
from tightship_analyzers.offload_planner.constraints import Constraints, Disk
from tightship_analyzers.offload_planner.planner import Option, search
from tightship_analyzers.offload_planner.profile import Origin, Profile
from tightship_offload.errors import PlanError
from tightship_offload.plan.model import (
    Budget,
    Clipping,
    HardwareSpec,
    Interval,
    Loop,
    Nvme,
    OptimizerPlan,
    Plan,
    Prediction,
    Recompute,
    UpdateStart,
    Window,
)

LEAST_SPREAD_FRAC = 0.03
"""A prediction is never said to be closer than this."""
WORTH_A_CHANGE_FRAC = 0.02
"""A loop that is changed has to save this much of the step to be shown."""
COUNTED_SPREAD_FRAC = 0.3
"""Of times that come from counted FLOPs: kernels reach very different shares of a matrix product's rate."""

FILES_SPREAD_FRAC = 0.5
"""Of steps whose layers are in files: how much of them the page cache holds is the kernel's choice."""


def rules_for(profile: Profile, *, early: bool = False, threads: int | None = None, fused: bool = False) -> Rules:
    """How the profiled loop lets its layers be updated; `early`: during backward.

    :param fused: layers take the optimizer's fused form where the script leaves the form open.
    :raises PlanError: it clips, and the limit that early updates have to know was not seen.
    """
    clips = profile.clips or not profile.steps  # of counted work nothing is known: it may clip
    if not early:
        return Rules(clipping=Clipping.EXACT if clips else Clipping.NONE, threads=threads, fused=fused)
    if clips and profile.clip_norm is None:
        raise PlanError(
            "--early needs to know the limit of clipping, which this source does not show; plan from a profile that "
            "`tightship offload measure` wrote"
        )
    clipping = Clipping.SPECULATIVE if clips else Clipping.NONE
    return Rules(start=UpdateStart.DURING_BACKWARD, clipping=clipping, threads=threads, fused=fused)


def plan_of(option: Option, constraints: Constraints) -> Plan:
    """The plan that a candidate stands for, with its prediction."""
    one, rules = option.candidate, constraints.rules
    profile = one.profile
    tokens = profile.tokens
    return Plan(
        model=profile.model,
        window=Window(slots=one.slots, resident=tuple(sorted(one.resident)), prefetch=one.prefetch),
        optimizer=OptimizerPlan(
            gpu_streamed=tuple(sorted(one.gpu_streamed)),
            gpu_resident=tuple(sorted(one.gpu_resident)),
            order=rules.order,
            start=rules.start,
            clipping=rules.clipping,
            threads=rules.threads,
            fused=rules.fused,
        ),
        loop=Loop(
            micro_batches=one.micro_batches,
            clip_norm=profile.clip_norm if rules.clipping is not Clipping.NONE else None,
            recompute=one.recompute,
            tokens=None if tokens is None else max(1, tokens * profile.micro_batches // one.micro_batches),
        ),
        precision=profile.precision,
        budget=Budget(
            device_bytes=constraints.device_bytes,
            host_bytes=constraints.host_bytes,
            pinned_bytes=constraints.pinned_bytes,
        ),
        nvme=_files_of(one, constraints.nvme),
        hardware=one.hardware,
        prediction=prediction_of(option),
    )


def _files_of(one: Candidate, disk: Disk | None) -> Nvme | None:
    moving = tuple(layer for layer in range(len(one.profile.layers)) if layer not in one.resident)
    if not one.in_files or disk is None or not moving:
        return None
    return Nvme(folder=disk.folder, layers=moving, weights=True)


def prediction_of(option: Option) -> Prediction:
    """What the simulation says, with an interval as wide as the profile's own scatter."""
    one, result = option.candidate, option.result
    memory = one.memory
    return Prediction(
        step_ns=interval_of(option.step_ns, one.profile, in_files=one.in_files),
        no_offload_step_ns=interval_of(one.no_offload_ns, one.profile),
        device_bytes=memory.device,
        host_bytes=memory.host,
        pinned_bytes=memory.pinned,
        nvme_bytes=memory.files,
        h2d_bytes=result.h2d_bytes // result.steps,
        d2h_bytes=result.d2h_bytes // result.steps,
        bottleneck=result.bottleneck,
        waits_ns={cause.value: ns // result.steps for cause, ns in result.waits_ns.items() if ns},
    )


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A finished plan and what else there was."""

    plan: Plan
    options: dict[str, Option]
    """By name, the chosen one first."""
    simulated: int
    change: str = ""
    """What the loop has to do for the plan that it did not do when it was profiled; empty: nothing."""


def make_plan(profile: Profile, hardware: HardwareSpec, constraints: Constraints) -> Planned:
    """The best plan that leaves the loop as it is; where none fits, the best with a changed loop, which it names.

    Where host memory holds no plan and a folder is given, layers are in files.

    :raises PlanError: nothing fits; the line names the smallest change that makes it fit.
    """
    as_it_is = replace(
        constraints,
        recompute=constraints.recompute or profile.recompute,
        micro_batches=constraints.micro_batches or profile.micro_batches,
    )
    try:
        found = search(profile, hardware, as_it_is)
    except PlanError:
        if constraints.nvme is not None and not constraints.in_files:
            return make_plan(profile, hardware, replace(constraints, in_files=True))
        found = None
    changed = search(profile, hardware, constraints)
    found = found or changed
    options = {
        "recommended": found.recommended,
        "fastest": found.fastest,
        "smallest": found.smallest,
        "most headroom": found.most_headroom,
    }
    if changed.recommended.step_ns < found.recommended.step_ns * (1 - WORTH_A_CHANGE_FRAC):
        options["changed loop"] = changed.recommended
    return Planned(
        plan=plan_of(found.recommended, constraints),
        options=options,
        simulated=found.simulated + changed.simulated,
        change=_change(profile, found.recommended),
    )


def _change(profile: Profile, option: Option) -> str:
    one, parts = option.candidate, []
    if one.micro_batches != profile.micro_batches:
        parts.append(f"split the batch into {one.micro_batches} micro-batches (it has {profile.micro_batches})")
    if one.recompute is not profile.recompute:
        checkpoints = one.recompute is Recompute.LAYER
        parts.append("checkpoint each layer (torch.utils.checkpoint)" if checkpoints else "stop checkpointing layers")
    return f"Change the loop first: {' and '.join(parts)}." if parts else ""


def interval_of(ns: int, profile: Profile, *, in_files: bool = False) -> Interval:
    """A simulated time, and how far it may be off: as far as the times of the profile."""
    spread = max(LEAST_SPREAD_FRAC, profile.spread_frac)
    if profile.origin is Origin.COUNTED:
        spread = max(spread, COUNTED_SPREAD_FRAC)
    if in_files:
        spread = max(spread, FILES_SPREAD_FRAC)
    spread = min(spread, 0.9)
    return Interval(value=ns, low=ns * (1 - spread), high=ns * (1 + spread))
