"""A given plan on given costs: what it would do there."""

from __future__ import annotations

from tightship_analyzers.offload_planner.candidate import Candidate, Rules
from tightship_analyzers.offload_planner.planner import Option
from tightship_analyzers.offload_planner.profile import Profile
from tightship_analyzers.offload_planner.simulate import simulate
from tightship_offload.errors import PlanError
from tightship_offload.plan.model import HardwareSpec, Plan, model_differences


def replay(plan: Plan, profile: Profile, hardware: HardwareSpec) -> Option:
    """Simulate a plan.

    :raises PlanError: it is for another model than the profile.
    """
    differences = model_differences(plan.model, profile.model)
    if differences:
        raise PlanError(f"The plan is for another model than the profile: {'; '.join(differences)}")
    optimizer = plan.optimizer
    candidate = Candidate(
        profile=profile,
        hardware=hardware,
        rules=Rules(
            order=optimizer.order,
            start=optimizer.start,
            clipping=optimizer.clipping,
            threads=optimizer.threads,
            fused=optimizer.fused,
        ),
        slots=plan.window.slots,
        ahead=plan.window.prefetch,
        resident=frozenset(plan.window.resident),
        gpu_resident=frozenset(optimizer.gpu_resident),
        gpu_streamed=frozenset(optimizer.gpu_streamed),
        recompute=plan.loop.recompute,
        micro_batches=plan.loop.micro_batches,
        in_files=plan.nvme is not None,
    )
    return Option(candidate=candidate, result=simulate(candidate.work, candidate.links, candidate.choice))
