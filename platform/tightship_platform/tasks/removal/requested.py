"""Removing runs because somebody wants it: one, or all of a workflow, a user or a team."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from tightship_platform import validation
from tightship_platform.database.models import (
    CaptureSchedule,
    Opportunity,
    OpportunityAction,
    Plan,
    Run,
    UserTeam,
    Workflow,
)
from tightship_platform.errors import Conflict, NotFound
from tightship_platform.tasks.removal.runs import begin, remove_if_empty
from tightship_platform.units import now_ns, plural
from tightship_platform.vocabulary import RunState

SHOWN = 5
"""Of many live runs, so many are named."""
_SEE = "see `tightship runs`"


class Kind(StrEnum):
    """What is deleted: a run, or whose runs."""

    RUN = "run"
    WORKFLOW = "workflow"
    USER = "user"
    TEAM = "team"


def begin_all(session: Session, kind: Kind, name: str, *, of_all: bool = True) -> list[str]:
    """Begin to remove what is named, with its runs, none of which may live; returns their keys.

    Of a workflow, its schedule, plans and opportunities go, too; of a user or a team, what `tightship token team` said.

    :param of_all: whether the caller may touch what is not of one team, such as who is in which.
    :raises NotFound: there is no such thing.
    :raises Conflict: some of the runs live; nothing was changed.
    """
    now = now_ns()
    validation.name(kind.capitalize(), name)
    which = {
        Kind.RUN: Run.key == name,
        Kind.WORKFLOW: Run.workflow_id.in_(select(Workflow.id).where(Workflow.name == name)),
        Kind.USER: Run.user_name == name,
        Kind.TEAM: Run.team == name,
    }[kind]
    found = session.execute(select(Run.id, Run.key, Run.state).where(which).order_by(Run.id)).all()
    _require_ended(kind, name, [row.key for row in found if row.state == RunState.RUNNING])
    workflow = session.scalar(select(Workflow.id).where(Workflow.name == name)) if kind == Kind.WORKFLOW else None
    forgotten = _forget(session, kind, name) if of_all else 0
    if not found and workflow is None and not forgotten:
        raise NotFound(kind.value, name[:200], _SEE)
    keys = [begin(session, row.id, keeps_names=False, now=now) for row in found]
    if workflow is not None:
        for model in (CaptureSchedule, Plan, Opportunity, OpportunityAction):
            gone = delete(model).where(model.workflow_id == workflow)
            session.execute(gone.execution_options(synchronize_session=False))
        remove_if_empty(session, workflow)
    return keys


def _require_ended(kind: Kind, name: str, live: Sequence[str]) -> None:
    if not live:
        return
    if kind == Kind.RUN:
        raise Conflict(f"Run {name} is running; a run is deleted when it has ended")
    more = f" and {len(live) - SHOWN} more" if len(live) > SHOWN else ""
    raise Conflict(
        f"{plural(len(live), 'run')} of {kind} {name!r} still {'live' if len(live) > 1 else 'lives'} "
        f"({', '.join(live[:SHOWN])}{more}); nothing was deleted, end what runs first"
    )


def _forget(session: Session, kind: Kind, name: str) -> int:
    """What is said of a user or a team beside their runs."""
    if kind not in (Kind.USER, Kind.TEAM):
        return 0
    column = UserTeam.user_name if kind == Kind.USER else UserTeam.team
    rows = session.scalars(select(UserTeam).where(column == name)).all()
    for row in rows:
        session.delete(row)
    if kind == Kind.USER:
        owned = update(Workflow).where(Workflow.owner == name).values(owner=None)
        session.execute(owned.execution_options(synchronize_session=False))
    return len(rows)
