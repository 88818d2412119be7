"""Workflows: recurring work, and the schedule of its captures."""

from __future__ import annotations

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from tightship_platform.database import models
from tightship_platform.errors import NotFound
from tightship_platform.queries.filtered import among_runs, checked_state, in_fleet, with_rule, within, without
from tightship_platform.queries.pages import following, ordered
from tightship_platform.queries.runs import MAX_LIMIT, checked_limit
from tightship_platform.results.filters import ALL, Filters
from tightship_platform.results.workflow import CaptureSchedule, Workflow
from tightship_platform.vocabulary import RunState
from tightship_platform.wire import CaptureParams

_OWN = {"workflow": models.Workflow.name, "team": models.Workflow.team, "owner": models.Workflow.owner}
"""Filters that speak of the workflow itself, and its column."""


def list_workflows(
    session: Session, filters: Filters = ALL, *, after: str | None = None, limit: int = MAX_LIMIT
) -> list[Workflow]:
    """Workflows, the one that started last first; times are when it did. What else is said is of some run of theirs.

    :param after: those that come after the one of this name: the last one of the page before.
    :raises Invalid: no such state, or a limit out of range.
    :raises NotFound: there is no workflow `after` any more.
    """
    live = func.sum(case((models.Run.state == RunState.RUNNING.value, 1), else_=0))
    counts = (
        select(
            models.Run.workflow_id,
            func.count().label("runs"),
            live.label("live"),
            func.max(models.Run.start_ns).label("last"),
        )
        .group_by(models.Run.workflow_id)
        .subquery()
    )
    order = ((counts.c.last, True), (models.Workflow.name, False))
    wanted = (
        select(models.Workflow, counts.c.runs, counts.c.live, counts.c.last, models.CaptureSchedule)
        .outerjoin(counts, counts.c.workflow_id == models.Workflow.id)
        .outerjoin(models.CaptureSchedule, models.CaptureSchedule.workflow_id == models.Workflow.id)
        .order_by(*ordered(order))
    )
    state = checked_state(filters, RunState)
    of_runs = [*with_rule(filters), *([] if state is None else [models.Run.state == state])]
    of_itself = [column == value for name, column in _OWN.items() if (value := getattr(filters, name)) is not None]
    wanted = wanted.where(
        in_fleet(session, filters, models.Workflow.fleet_id),
        *of_itself,
        *among_runs(session, without(filters, *_OWN), models.Workflow.id, models.Run.workflow_id, *of_runs),
        *within(filters, counts.c.last),
    )
    if after is not None:
        last = select(func.max(models.Run.start_ns)).where(models.Run.workflow_id == find_workflow(session, after).id)
        wanted = wanted.where(following(order, (session.scalar(last), after)))
    return [
        Workflow(
            workflow=workflow.name,
            team=workflow.team,
            owner=workflow.owner,
            labels=workflow.labels,
            runs=runs or 0,
            live=live_runs or 0,
            last_start_ns=last,
            schedule=None if schedule is None or not schedule.enabled else public_schedule(schedule),
        )
        for workflow, runs, live_runs, last, schedule in session.execute(wanted.limit(checked_limit(limit)))
    ]


def find_workflow(session: Session, name: str) -> models.Workflow:
    """The workflow of that name.

    :raises NotFound: there is none.
    """
    workflow = session.scalar(select(models.Workflow).where(models.Workflow.name == name))
    if workflow is None:
        raise NotFound("workflow", name[:200], "see `tightship runs`")
    return workflow


def public_schedule(schedule: models.CaptureSchedule) -> CaptureSchedule:
    """The record of a schedule's row."""
    return CaptureSchedule(every_ns=schedule.every_ns, params=CaptureParams(**schedule.params))
