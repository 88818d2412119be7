"""Did it work? Two runs of one workflow, step by step, like with like."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform.database.models import OpportunityAction, Run
from tightship_platform.errors import Conflict
from tightship_platform.ingest.actions import bootstrap
from tightship_platform.ingest.actions.bootstrap import LEVEL, MIN_PERIODS, Interval
from tightship_platform.ingest.actions.like_with_like import require_alike
from tightship_platform.ingest.actions.steps import RunSteps, run_steps
from tightship_platform.results.action import ComparedRun, Prediction, Verification
from tightship_platform.results.codec import decode
from tightship_platform.units import format_frac
from tightship_platform.vocabulary import ActionKind, Verdict

MARGIN_FRAC = 0.01
"""A smaller saving counts as none: a choice, as two runs of one program differ, too."""


def verify(session: Session, before: Run, after: Run, predicted: Prediction | None) -> Verification:
    """What a step takes less in the run `after` than in the run `before`: docs/verification.md has the statistics.

    :raises Conflict: the two are not alike, or one has no step to compare.
    """
    steps = run_steps(session, before), run_steps(session, after)
    remarks = require_alike(before, after, steps)
    for run, counted in zip((before, after), steps, strict=True):
        if not counted.periods:
            raise Conflict(f"Run {run.key} has no steps after its start-up and outside of captures; let it run longer")
    few = min(len(one.periods) for one in steps) < MIN_PERIODS
    found = None if few else bootstrap.saving(steps[0].periods, steps[1].periods)
    compared = [
        _compared(run, counted, None if found is None else found.blocks[index])
        for index, (run, counted) in enumerate(zip((before, after), steps, strict=True))
    ]
    margin = MARGIN_FRAC if predicted is None else min(MARGIN_FRAC, max(predicted.saving_frac, 0.0) / 2)
    verdict, reason = _judge(found, margin, compared)
    return Verification(
        workflow=before.workflow.name,
        before=compared[0],
        after=compared[1],
        verdict=verdict.value,
        saving_frac=1 - compared[1].step_ns / compared[0].step_ns if found is None else found.value,
        low_frac=None if found is None else found.low,
        high_frac=None if found is None else found.high,
        level=LEVEL,
        margin_frac=margin,
        predicted=predicted,
        agreement=_agreement(found, predicted),
        reason=reason,
        remarks=remarks,
    )


def predicted_between(session: Session, before: Run, after: Run) -> Prediction | None:
    """What was predicted by the application that the later run was launched with, else by the last one between the
    starts of the two; None: there was none."""
    own = None if after.applied_action_id is None else session.get(OpportunityAction, after.applied_action_id)
    if own is not None and own.predicted is not None and before.applied_action_id != own.id:
        return decode(Prediction, own.predicted, "Prediction")
    predicted = session.scalar(
        select(OpportunityAction.predicted)
        .where(
            OpportunityAction.workflow_id == after.workflow_id,
            OpportunityAction.kind == ActionKind.APPLY.value,
            OpportunityAction.time_ns > before.start_ns,
            OpportunityAction.time_ns <= after.start_ns,
        )
        .order_by(OpportunityAction.time_ns.desc(), OpportunityAction.id.desc())
        .limit(1)
    )
    return None if predicted is None else decode(Prediction, predicted, "Prediction")


def _compared(run: Run, steps: RunSteps, block: int | None) -> ComparedRun:
    step_ns = round(bootstrap.time_per_step(steps.periods))
    return ComparedRun(
        run=run.key,
        steps=sum(period.steps for period in steps.periods),
        periods=len(steps.periods),
        block=block,
        step_ns=max(step_ns, 1),
        step_device_ns=max(step_ns, 1) * steps.devices.total(),
    )


def _judge(found: Interval | None, margin: float, compared: list[ComparedRun]) -> tuple[Verdict, str]:
    if found is None:
        short = min(compared, key=lambda one: one.periods)
        return Verdict.UNDECIDED, (
            f"Run {short.run} has {short.periods} of the {MIN_PERIODS} periods of steps that a comparison needs: "
            "about 90 s of steps outside of captures, less where TIGHTSHIP_STEP_PERIOD_S is below 10"
        )
    least = format_frac(margin)
    if found.low >= margin:
        return Verdict.VERIFIED, f"All of the interval lies at or above {least}: a step takes less device time"
    if found.high < margin:
        worse = found.high < 0
        return Verdict.REFUTED, (
            "All of the interval lies below 0: a step takes more device time"
            if worse
            else f"All of the interval lies below {least}: a step takes as much device time as before"
        )
    return Verdict.UNDECIDED, f"The interval holds {least}: longer runs would tell"


def _agreement(found: Interval | None, predicted: Prediction | None) -> str | None:
    if found is None or predicted is None:
        return None
    if found.low > predicted.high_frac:
        return "more than predicted"
    return "less than predicted" if found.high < predicted.low_frac else "as predicted"
