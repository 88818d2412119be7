"""Workflows whose opportunities are out of date: whoever changes what they are made of marks them.

A mark goes with the change that makes it, in one transaction. `marked` counts, and `ranked` is that count as it was
when the workflow was ranked last: what is marked meanwhile stays so.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy.orm import Session

from tightship_platform.database.models import RankedWorkflow
from tightship_platform.database.upsert import insert_into

NEVER = -1
"""`ranked` of a workflow that never was."""


def mark(session: Session, workflow_ids: Iterable[int]) -> None:
    """The accounts, traces, findings or opportunities of these workflows have changed."""
    rows = [{"workflow_id": one, "marked": 1, "ranked": NEVER, "ranked_ns": 0} for one in sorted(set(workflow_ids))]
    if rows:
        statement = insert_into(session, RankedWorkflow)
        again = {"marked": RankedWorkflow.marked + 1}
        session.execute(statement.on_conflict_do_update(index_elements=["workflow_id"], set_=again), rows)
