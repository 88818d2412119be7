"""A constraints that nothing fits is refused with the smallest change that makes something fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

from tightship_analyzers.offload_planner.candidate import Candidate
from tightship_analyzers.offload_planner.constraints import Constraints, Limits, Shortfall, shortfalls
from tightship_analyzers.offload_planner.profile import Profile
from tightship_offload.errors import PlanError
from tightship_offload.plan.model import HardwareSpec, Recompute
from tightship_platform.units import format_bytes


def refuse(
    profile: Profile, hardware: HardwareSpec, constraints: Constraints, limits: Limits, smallest: list[Candidate]
) -> NoReturn:
    """Say what does not fit and what to change.

    :raises PlanError: always.
    """
    nearest = min(smallest, key=lambda one: _to_change(shortfalls(one.memory, limits)))
    broken = shortfalls(nearest.memory, limits)
    worst = broken[0]
    change = next(_changes(profile, constraints, limits, nearest), None)
    more = ", and ".join(f"{format_bytes(one.missing)} more {one.what}" for one in broken)
    ways = _other_ways(broken, may_take_files=constraints.nvme is None)
    fix = f"{change}, or give {more}" if change is not None else f"give {more}{ways}"
    raise PlanError(
        f"The smallest window of {profile.model.name} on {hardware.device!r} needs {format_bytes(worst.needed)} of "
        f"{worst.what}, and {worst.allowed_by} allows {format_bytes(worst.allowed)}; {fix}"
    )


def _changes(profile: Profile, constraints: Constraints, limits: Limits, nearest: Candidate) -> Iterator[str]:
    """Changes of the constraints that suffice, the smallest first."""

    def fits(candidate: Candidate) -> bool:
        return not shortfalls(candidate.memory, limits)

    if constraints.resident:
        for kept in range(len(constraints.resident) - 1, -1, -1):
            fewer = frozenset(constraints.resident[:kept])
            if fits(replace(nearest, resident=fewer, gpu_resident=fewer)):
                yield f"keep {kept} layers resident instead of {len(constraints.resident)}"
                break
    bare = replace(nearest, resident=frozenset(), gpu_resident=frozenset())
    if constraints.slots is not None and constraints.slots > 2:
        for slots in range(constraints.slots - 1, 1, -1):
            if fits(replace(nearest, slots=slots)):
                yield f"take {slots} slots instead of {constraints.slots}"
                break
    least = replace(bare, slots=min(2, bare.slots))
    if constraints.recompute is Recompute.NONE and fits(replace(least, recompute=Recompute.LAYER)):
        yield "recompute the layers' activations (--recompute layer)"
    batch = profile.batch or 1
    if constraints.micro_batches is not None:
        for cut in (cut for cut in range(2, min(batch, 4096) + 1) if batch % cut == 0):
            count = profile.micro_batches * cut
            if count > constraints.micro_batches and fits(
                replace(least, recompute=Recompute.LAYER, micro_batches=count)
            ):
                yield f"split the batch into {count} micro-batches (--micro-batches {count} --recompute layer)"
                break


def _to_change(broken: list[Shortfall]) -> tuple[bool, float]:
    """What is lacking; a limit that a setting lifts, and nothing else, is nearer than memory that is not there."""
    return {one.what for one in broken} != {"pinned memory"}, sum(
        one.needed / max(1, one.allowed) - 1 for one in broken
    )


def _other_ways(broken: list[Shortfall], *, may_take_files: bool) -> str:
    """What else helps, by the limits that bind."""
    files = "layers in files (--nvme FOLDER), " if may_take_files else ""
    ways = {
        "device memory": "a smaller batch, or a chunked loss where logits are large",
        "host memory": f"bf16 weights, {files}or an optimizer with less state",
        "disk space": "another folder for --nvme",
        "pinned memory": "`ulimit -l unlimited` before the run, or --pinned-budget where the driver does not count it",
    }
    return "; other ways: " + "; ".join(ways[one.what] for one in broken)
