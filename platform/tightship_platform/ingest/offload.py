"""An offload plan that a run used: what it predicted, and what the run's steps took."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform import validation
from tightship_platform.database.models import Action, Plan, Run, Verification
from tightship_platform.errors import Invalid

KIND = "offload"
APPLIED_BY = "tightship run"
PLANNED = ("layers", "slots", "resident", "predicted_step_ns", "predicted_low_ns", "predicted_high_ns")
MEASURED = (
    "steps",
    "step_ns",
    "wait_h2d_ns",
    "wait_update_ns",
    "wait_slot_ns",
    "wait_d2h_ns",
    "update_ns",
    "in_one_pass",
    "h2d_bytes",
    "d2h_bytes",
)
"""Medians per step, except `steps`."""


def check_offload(figures: Mapping[str, int]) -> None:
    """See whether the figures are ones that a run may tell.

    :raises Invalid: an unknown figure, or a negative or absurd one.
    """
    for figure, value in figures.items():
        if figure not in PLANNED and figure not in MEASURED:
            raise Invalid("Figure of offload", figure, f"one of {', '.join((*PLANNED, *MEASURED))}")
        validation.count(figure, value)


def put_offload(session: Session, run: Run, figures: Mapping[str, int], now: int) -> None:
    """Keep a plan's use once per run; a record that comes again changes nothing."""
    used = select(Action.id).join(Plan, Plan.id == Action.plan_id).where(Action.run_id == run.id, Plan.kind == KIND)
    if session.scalar(used.limit(1)) is not None:
        return
    planned = {name: figures[name] for name in PLANNED if name in figures}
    plan = Plan(workflow_id=run.workflow_id, kind=KIND, body=planned, created_ns=run.start_ns)
    session.add(plan)
    session.flush()
    action = Action(plan_id=plan.id, run_id=run.id, applied_by=APPLIED_BY, applied_ns=run.start_ns)
    session.add(action)
    session.flush()
    session.add(
        Verification(
            action_id=action.id,
            before={},
            after={name: figures[name] for name in MEASURED if name in figures},
            predicted_ns=figures.get("predicted_step_ns"),
            measured_ns=figures.get("step_ns"),
            verified_ns=now,
        )
    )
