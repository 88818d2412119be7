"""The answer to a planning request: the profile of the model, the machine, and how the one fits on the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from tightship_analyzers.offload_planner.assumed import ASSUMED_SPREAD_FRAC, NOTE, assumed_hardware, on_device
from tightship_analyzers.offload_planner.constraints import Constraints
from tightship_analyzers.offload_planner.fit import Report, fit
from tightship_analyzers.offload_planner.plans import rules_for
from tightship_analyzers.offload_planner.profile import Profile, parse_profile
from tightship_analyzers.offload_planner.request import CPU, MOST_PROFILE_BYTES, Request
from tightship_offload.errors import PlanError
from tightship_offload.plan.model import HardwareSpec
from tightship_platform.results.plan_answer import PlanAnswer, PlanSource

ReadTraces = Callable[[Sequence[PlanSource]], tuple[Profile, PlanSource]]
"""Reads the profile that the first usable one of some traces holds."""


def answer(request: Request, read_traces: ReadTraces | None = None, *, report: Report = lambda _: None) -> PlanAnswer:
    """What `fit` finds for a request.

    :param read_traces: needed where the request has no profile.
    :raises OffloadError: nothing can be planned from it; one line.
    :raises TightshipError: a file cannot be had.
    """
    source = None
    if request.profile is not None:
        original = _parsed(request.profile)
    elif read_traces is not None:
        report("reading the trace")
        original, source = read_traces(request.sources)
    else:
        raise PlanError("The request has no profile to plan from")
    profile, machine, is_assumed = _on_machine(original, request)
    constraints = Constraints(device_bytes=request.budget_bytes, rules=rules_for(profile))
    found = fit(profile, machine, constraints, report=report)
    return PlanAnswer(**vars(found), profile=json.dumps(original.as_mapping()), source=source, assumed=is_assumed)


def _parsed(text: str) -> Profile:
    if len(text) > MOST_PROFILE_BYTES:
        raise PlanError(
            f"The profile has {len(text):,} characters; expected at most {MOST_PROFILE_BYTES:,}, as "
            "`tightship offload measure -o` writes it"
        )
    return parse_profile(text)


def _on_machine(profile: Profile, request: Request) -> tuple[Profile, HardwareSpec, bool]:
    """The profile with its times on the device to plan for, that machine, and whether its rates are assumed."""
    measured = profile.hardware
    recorded = request.recorded_on or (measured.device if measured is not None else None)
    target = request.device or recorded
    if target is None:
        raise PlanError("The target device is unknown: choose a GPU")
    known_bytes, known_cores = (None, None) if measured is None else (measured.host_bytes, measured.cores)
    host_bytes, cores = request.host_bytes or known_bytes, request.cores or known_cores
    if measured is not None and target == measured.device and host_bytes and cores:
        device_bytes = host_bytes if target == CPU else measured.device_bytes
        return profile, replace(measured, device_bytes=device_bytes, host_bytes=host_bytes, cores=cores), False
    if not host_bytes or not cores:
        raise PlanError("The host's memory and cores are unknown: give both")
    machine = assumed_hardware(
        target,
        device_bytes=request.recorded_bytes if target == request.recorded_on else None,
        host_bytes=host_bytes,
        cores=cores,
    )
    moved = on_device(profile, recorded or target, target)
    guess = [] if recorded else [f"The device on which the times were measured is unknown; {target} is assumed."]
    spread = max(ASSUMED_SPREAD_FRAC, moved.spread_frac)
    return replace(moved, spread_frac=spread, notes=(*moved.notes, *guess, NOTE)[-50:]), machine, True
