"""Opportunities: what to do first, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass

from tightship_platform.api.auth import require
from tightship_platform.api.reply import Answer, Db
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.database import models, ranked_workflows
from tightship_platform.database.audit import audit
from tightship_platform.queries import opportunities
from tightship_platform.results.filters import imported_fleet
from tightship_platform.results.opportunity import Opportunity
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import OpportunityState, Scope

router = scoped_router("opportunities")


@dataclass(kw_only=True)
class StateChange:
    """Where somebody says that an opportunity stands now."""

    state: OpportunityState


@router.get("/opportunities", dependencies=[needs(Scope.READ)], response_model=list[Opportunity])
def list_opportunities(database: Db, fleet: str | None = None, after: int | None = None, limit: int = 1000) -> Answer:
    """Opportunities of the live fleet, or of an imported one, the first in the ranking first; of those after the
    opportunity `after`, the last one of the page before."""
    with database.session() as session:
        return Answer(opportunities.list_opportunities(session, fleet=imported_fleet(fleet), after=after, limit=limit))


@router.post("/opportunities/{key}/state", dependencies=[needs(Scope.APPLY)], response_model=Opportunity)
def change_state(key: int, body: StateChange, database: Db) -> Answer:
    """Say where an opportunity stands; answers it."""
    with database.session() as session:
        opportunities.get_opportunity(session, key)
        row = session.get_one(models.Opportunity, key, with_for_update=True, populate_existing=True)
        if row.state != body.state:
            caller = require(Scope.APPLY)
            audit(session, caller.name, "opportunity.state", str(key), before=row.state, after=body.state.value)
            row.state, row.updated_ns = body.state.value, now_ns()
            session.flush()
            ranked_workflows.mark(session, [row.workflow_id])  # those that are not open come last
        answer = opportunities.get_opportunity(session, key)
    return Answer(answer)
