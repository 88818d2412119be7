"""Workflows: recurring work, and the schedule of its captures."""

from __future__ import annotations

from typing import Any

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from tightship_platform.database.models import CaptureSchedule, Run, Workflow
from tightship_platform.errors import NotFound
from tightship_platform.vocabulary import RunState


def list_workflows(session: Session) -> list[dict[str, Any]]:
    """All workflows, the one that started last first."""
    return _workflows(session)


def get_workflow(session: Session, name: str) -> dict[str, Any]:
    """One workflow.

    :raises NotFound: there is none of that name.
    """
    return _workflows(session, find_workflow(session, name).name)[0]


def find_workflow(session: Session, name: str) -> Workflow:
    """The workflow of that name.

    :raises NotFound: there is none.
    """
    workflow = session.scalar(select(Workflow).where(Workflow.name == name))
    if workflow is None:
        raise NotFound("workflow", name[:200], "see `tightship runs`")
    return workflow


def _workflows(session: Session, name: str | None = None) -> list[dict[str, Any]]:
    live = func.sum(case((Run.state == RunState.RUNNING.value, 1), else_=0))
    counts = (
        select(Run.workflow_id, func.count().label("runs"), live.label("live"), func.max(Run.start_ns).label("last"))
        .group_by(Run.workflow_id)
        .subquery()
    )
    wanted = (
        select(Workflow, counts.c.runs, counts.c.live, counts.c.last, CaptureSchedule)
        .outerjoin(counts, counts.c.workflow_id == Workflow.id)
        .outerjoin(CaptureSchedule, CaptureSchedule.workflow_id == Workflow.id)
        .order_by(counts.c.last.desc().nulls_last(), Workflow.name)
    )
    if name is not None:
        wanted = wanted.where(Workflow.name == name)
    return [
        {
            "workflow": workflow.name,
            "team": workflow.team,
            "owner": workflow.owner,
            "labels": workflow.labels,
            "runs": runs or 0,
            "live": live_runs or 0,
            "last_start_ns": last,
            "schedule": None
            if schedule is None or not schedule.enabled
            else {"every_ns": schedule.every_ns, "params": schedule.params},
        }
        for workflow, runs, live_runs, last, schedule in session.execute(wanted)
    ]
