"""What to do first."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from tightship_platform.database import ids, models
from tightship_platform.errors import NotFound
from tightship_platform.queries.filtered import in_fleet
from tightship_platform.queries.pages import following, ordered
from tightship_platform.queries.runs import MAX_LIMIT, checked_limit
from tightship_platform.results.filters import Filters
from tightship_platform.results.opportunity import Opportunity
from tightship_platform.vocabulary import OpportunityState

_RANKED = ((models.Opportunity.position, False), (models.Opportunity.id, False))


def list_opportunities(
    session: Session,
    *,
    fleet: str | None = None,
    dismissed: bool = False,
    after: int | None = None,
    limit: int = MAX_LIMIT,
) -> list[Opportunity]:
    """Opportunities of a fleet in the order in which they were ranked.

    :param fleet: an imported one; None: the live one.
    :param dismissed: whether those that somebody dismissed are among them.
    :param after: those that come after this one: the last one of the page before.
    :raises Invalid: a limit out of range.
    :raises NotFound: there is no opportunity `after` any more, or no such fleet.
    """
    wanted = select(models.Opportunity).options(joinedload(models.Opportunity.workflow)).order_by(*ordered(_RANKED))
    of_fleet = in_fleet(session, Filters(fleet=fleet), models.Workflow.fleet_id)
    wanted = wanted.where(models.Opportunity.workflow_id.in_(select(models.Workflow.id).where(of_fleet)))
    if not dismissed:
        wanted = wanted.where(models.Opportunity.state != OpportunityState.DISMISSED.value)
    if after is not None:
        last = find_opportunity(session, after)
        wanted = wanted.where(following(_RANKED, (last.position, last.id)))
    return [_opportunity(row) for row in session.scalars(wanted.limit(checked_limit(limit)))]


def get_opportunity(session: Session, opportunity_id: int) -> Opportunity:
    """One opportunity.

    :raises NotFound: there is none of that id.
    """
    return _opportunity(find_opportunity(session, opportunity_id))


def opportunity_of_finding(session: Session, finding_id: int) -> Opportunity | None:
    """The opportunity that a finding belongs to: that of its workflow which its rule is behind; None: there is none."""
    opportunity = models.Opportunity
    wanted = (
        select(opportunity, models.Finding.rule)
        .options(joinedload(opportunity.workflow))
        .join(models.Run, models.Run.workflow_id == opportunity.workflow_id)
        .join(models.Finding, models.Finding.run_id == models.Run.id)
        .where(models.Finding.id == finding_id)
        .order_by(*ordered(_RANKED))
    )
    return next((_opportunity(row) for row, rule in session.execute(wanted) if rule in row.rules), None)


def find_opportunity(session: Session, opportunity_id: int) -> models.Opportunity:
    """The opportunity of that id.

    :raises NotFound: there is none.
    """
    wanted = select(models.Opportunity).options(joinedload(models.Opportunity.workflow))
    found = ids.row_of(session, wanted, opportunity_id)
    if found is None:
        raise NotFound("opportunity", str(opportunity_id), "see `tightship opportunities`")
    return found


def _opportunity(opportunity: models.Opportunity) -> Opportunity:
    return Opportunity(
        opportunity=opportunity.id,
        position=opportunity.position,
        workflow=opportunity.workflow.name,
        team=opportunity.workflow.team,
        owner=opportunity.workflow.owner,
        rules=opportunity.rules,
        title=opportunity.title,
        recoverable_device_ns=opportunity.value,
        low_ns=opportunity.low,
        high_ns=opportunity.high,
        method=opportunity.method or None,
        device_ns=opportunity.device_ns,
        fix=opportunity.fix,
        state=opportunity.state,
        findings=opportunity.findings,
        updated_ns=opportunity.updated_ns,
    )
