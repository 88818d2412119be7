"""What was done about opportunities, and what came of it."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from tightship_platform.database import ids, models
from tightship_platform.errors import NotFound
from tightship_platform.queries.filtered import checked_state
from tightship_platform.queries.opportunities import find_opportunity
from tightship_platform.queries.pages import following, ordered
from tightship_platform.queries.runs import MAX_LIMIT, checked_limit
from tightship_platform.results.action import Action, Prediction, ToChange, Verification
from tightship_platform.results.codec import decode
from tightship_platform.results.filters import ALL, Filters
from tightship_platform.vocabulary import ActionState

OF_WORKFLOW = 100
"""Applications of a run's workflow among which those are looked for that compared it, the newest first."""
_NEWEST_FIRST = ((models.OpportunityAction.time_ns, True), (models.OpportunityAction.id, True))
_WHOLE = (joinedload(models.OpportunityAction.workflow), joinedload(models.OpportunityAction.before_run))


def list_actions(
    session: Session,
    *,
    opportunity: int | None = None,
    filters: Filters = ALL,
    after: int | None = None,
    limit: int = MAX_LIMIT,
) -> list[Action]:
    """What was done about opportunities, the newest first.

    :param opportunity: of this one alone.
    :param filters: of these, `workflow`, `team` and `state` count; of the latter, an `ActionState`.
    :param after: those that come after this one: the last one of the page before.
    :raises Invalid: a limit out of range, or no such state.
    :raises NotFound: there is no such opportunity, or no action `after` any more.
    """
    wanted = select(models.OpportunityAction).options(*_WHOLE).order_by(*ordered(_NEWEST_FIRST))
    state = checked_state(filters, ActionState)
    if state is not None:
        wanted = wanted.where(models.OpportunityAction.state == state)
    named = ((models.Workflow.name, filters.workflow), (models.Workflow.team, filters.team))
    of_workflow = [column == value for column, value in named if value is not None]
    if of_workflow:
        workflows = select(models.Workflow.id).where(*of_workflow)
        wanted = wanted.where(models.OpportunityAction.workflow_id.in_(workflows))
    if opportunity is not None:
        wanted = wanted.where(models.OpportunityAction.opportunity_id == find_opportunity(session, opportunity).id)
    if after is not None:
        last = _find(session, after)
        wanted = wanted.where(following(_NEWEST_FIRST, (last.time_ns, last.id)))
    return [_action(row) for row in session.scalars(wanted.limit(checked_limit(limit)))]


def actions_comparing(session: Session, run: str) -> list[Action]:
    """Applications in whose newest comparison a run was the one before or after, the newest first."""
    of_run = select(models.Run.workflow_id).where(models.Run.key == run).scalar_subquery()
    action = models.OpportunityAction
    wanted = select(action).options(*_WHOLE).where(action.workflow_id == of_run, action.verified_ns.is_not(None))
    newest = session.scalars(wanted.order_by(*ordered(_NEWEST_FIRST)).limit(OF_WORKFLOW))
    found = [_action(row) for row in newest]
    return [one for one in found if one.verification is not None and run in _compared(one.verification)]


def compared_runs_left(session: Session, verification: Verification) -> set[str]:
    """Those of the two compared runs that were not removed since."""
    return set(session.scalars(select(models.Run.key).where(models.Run.key.in_(_compared(verification)))))


def workflows_acted_on(session: Session) -> list[tuple[str, str | None]]:
    """Name and team of the workflows with an opportunity about which something was done, by name."""
    acted = select(models.OpportunityAction.workflow_id)
    wanted = select(models.Workflow.name, models.Workflow.team).where(models.Workflow.id.in_(acted)).distinct()
    return [(name, team) for name, team in session.execute(wanted.order_by(models.Workflow.name))]


def get_action(session: Session, action_id: int) -> Action:
    """One action.

    :raises NotFound: there is none of that id.
    """
    return _action(_find(session, action_id))


def _compared(verification: Verification) -> tuple[str, str]:
    return verification.before.run, verification.after.run


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
        simulated=row.before_run is not None and row.before_run.simulated,
        state=row.state,
        waits_for=row.waits_for,
        verification=None if row.verification is None else decode(Verification, row.verification, what),
        verified_ns=row.verified_ns,
    )
