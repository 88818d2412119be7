"""Did an offload plan work? A model that did not fit has no step before to compare with: what counts is that it trained
within the memory that the plan takes, in the time that the plan predicted."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform.database import models
from tightship_platform.database.models import Run
from tightship_platform.ingest.offload import KIND
from tightship_platform.results.action import PlanOutcome
from tightship_platform.results.memory_lack import lack_of
from tightship_platform.units import format_ns, plural
from tightship_platform.vocabulary import Verdict

MIN_STEPS = 5
"""The first steps of a job are its slowest; of fewer, the median says little."""


def judge_by_plan(session: Session, run: Run) -> tuple[PlanOutcome | None, Verdict | None, str]:
    """What a run that has ended says of its plan, the verdict, and why; no verdict: it does not tell."""
    lack = lack_of(run.error, run.oom_kills)
    if run.exit_code and lack is not None:
        reason = f"The run was out of {lack} memory all the same"
        short = PlanOutcome(
            run=run.key, steps=0, step_ns=None, predicted_step_ns=None, low_ns=None, high_ns=None, reason=reason
        )
        return short, Verdict.REFUTED, reason
    if run.exit_code != 0:
        return None, None, f"Run {run.key} did not end well ({run.reason}), so that it says nothing of the plan"
    figures = _figures(session, run)
    if figures is None:
        return None, None, f"Run {run.key} was trained by no offload plan that predicts its step"
    took, low, high = (figures[name] for name in ("step_ns", "predicted_low_ns", "predicted_high_ns"))
    interval = f"{format_ns(low)} to {format_ns(high)}"
    if figures["steps"] < MIN_STEPS:
        return None, None, f"Run {run.key} made {plural(figures['steps'], 'step')} of the {MIN_STEPS} that tell"
    if took > high:
        verdict, reason = Verdict.REFUTED, f"A step took {format_ns(took)}, longer than predicted ({interval})"
    else:
        agreement = "less than predicted" if took < low else "as predicted"
        reason = f"It trained within the plan's memory, and a step took {format_ns(took)}, {agreement} ({interval})"
        verdict = Verdict.VERIFIED
    outcome = PlanOutcome(
        run=run.key,
        steps=figures["steps"],
        step_ns=took,
        predicted_step_ns=figures["predicted_step_ns"],
        low_ns=low,
        high_ns=high,
        reason=reason,
    )
    return outcome, verdict, reason


def _figures(session: Session, run: Run) -> dict[str, int] | None:
    """What the plan predicted and the steps took; None where one of the figures is missing."""
    row = session.execute(
        select(models.Plan.body, models.Verification.after)
        .join(models.Action, models.Action.plan_id == models.Plan.id)
        .join(models.Verification, models.Verification.action_id == models.Action.id)
        .where(models.Action.run_id == run.id, models.Plan.kind == KIND)
        .order_by(models.Verification.id.desc())
        .limit(1)
    ).first()
    figures = {} if row is None else {**row.body, **row.after}
    needed = ("steps", "step_ns", "predicted_step_ns", "predicted_low_ns", "predicted_high_ns")
    return figures if all(type(figures.get(name)) is int for name in needed) else None
