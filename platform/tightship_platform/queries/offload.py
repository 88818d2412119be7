"""Offload plans that runs used, and whether they kept what they promised."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform.database.models import Action, Plan, Verification
from tightship_platform.ingest.offload import KIND
from tightship_platform.results.run import RunOffload


def offload_of(session: Session, run_id: int) -> RunOffload | None:
    """The plan of a run and its steps; None where it used none."""
    rows = (
        select(Plan.body, Verification.predicted_ns, Verification.measured_ns, Verification.after)
        .join(Action, Action.plan_id == Plan.id)
        .join(Verification, Verification.action_id == Action.id)
        .where(Action.run_id == run_id, Plan.kind == KIND)
        .order_by(Verification.id.desc())
    )
    row = session.execute(rows.limit(1)).first()
    if row is None:
        return None
    return RunOffload(plan=row.body, predicted_ns=row.predicted_ns, measured_ns=row.measured_ns, step=row.after)
