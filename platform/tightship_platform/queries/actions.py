"""What was done about opportunities, and what came of it."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from tightship_platform.database import ids, models
from tightship_platform.errors import NotFound
from tightship_platform.queries.opportunities import find_opportunity
from tightship_platform.queries.pages import following, ordered
from tightship_platform.queries.runs import MAX_LIMIT, checked_limit
from tightship_platform.results.action import Action, PlanOutcome, Prediction, ToChange, Verification
from tightship_platform.results.codec import decode

_NEWEST_FIRST = ((models.OpportunityAction.time_ns, True), (models.OpportunityAction.id, True))
_WHOLE = (joinedload(models.OpportunityAction.workflow), joinedload(models.OpportunityAction.before_run))


def list_actions(
    session: Session, *, opportunity: int | None = None, after: int | None = None, limit: int = MAX_LIMIT
) -> list[Action]:
    """What was done about opportunities, the newest first.

    :param opportunity: of this one alone.
    :param after: those that come after this one: the last one of the page before.
    :raises Invalid: a limit out of range.
    :raises NotFound: there is no such opportunity, or no action `after` any more.
    """
    wanted = select(models.OpportunityAction).options(*_WHOLE).order_by(*ordered(_NEWEST_FIRST))
    if opportunity is not None:
        wanted = wanted.where(models.OpportunityAction.opportunity_id == find_opportunity(session, opportunity).id)
    if after is not None:
        last = _find(session, after)
        wanted = wanted.where(following(_NEWEST_FIRST, (last.time_ns, last.id)))
    return [_action(row) for row in session.scalars(wanted.limit(checked_limit(limit)))]


def get_action(session: Session, action_id: int) -> Action:
    """One action.

    :raises NotFound: there is none of that id.
    """
    return _action(_find(session, action_id))


def _find(session: Session, action_id: int) -> models.OpportunityAction:
    found = ids.row_of(session, select(models.OpportunityAction).options(*_WHOLE), action_id)
    if found is None:
        raise NotFound("action", str(action_id), "see `tightship actions`")
    return found


def _action(row: models.OpportunityAction) -> Action:
    what = f"Action {row.id}"
    return Action(
        action=row.id,
        opportunity=row.opportunity_id,
        workflow=row.workflow.name,
        team=row.workflow.team,
        title=row.title,
        kind=row.kind,
        by=row.actor,
        time_ns=row.time_ns,
        reason=row.reason,
        change=None if row.change is None else decode(ToChange, row.change, what),
        predicted=None if row.predicted is None else decode(Prediction, row.predicted, what),
        before=None if row.before_run is None else row.before_run.key,
        state=row.state,
        waits_for=row.waits_for,
        verification=None if row.verification is None else decode(Verification, row.verification, what),
        verified_ns=row.verified_ns,
        plan_outcome=None if row.plan_outcome is None else decode(PlanOutcome, row.plan_outcome, what),
    )
