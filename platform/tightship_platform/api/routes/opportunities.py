"""Opportunities: what to do first, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.responses import JSONResponse

from tightship_platform.api.auth import audit, require
from tightship_platform.api.reply import Db, reply
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.database.models import Opportunity
from tightship_platform.queries import opportunities
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import OpportunityState, Scope

router = scoped_router("opportunities")


@dataclass(kw_only=True)
class StateChange:
    """Where somebody says that an opportunity stands now."""

    state: OpportunityState


@router.get("/opportunities", dependencies=[needs(Scope.READ)], response_model=None)
def list_opportunities(database: Db) -> JSONResponse:
    """Opportunities by position: opportunity, position, workflow, team, rules, title, recoverable_device_ns, low_ns,
    high_ns, method, device_ns, fix, state, findings."""
    with database.session() as session:
        return reply(opportunities.list_opportunities(session))


@router.post("/opportunities/{key}/state", dependencies=[needs(Scope.APPLY)], response_model=None)
def change_state(key: int, body: StateChange, database: Db) -> JSONResponse:
    """Say where an opportunity stands; answers it."""
    with database.session() as session:
        opportunities.get_opportunity(session, key)
        row = session.get_one(Opportunity, key, with_for_update=True, populate_existing=True)
        if row.state != body.state:
            caller = require(Scope.APPLY)
            audit(session, caller.name, "opportunity.state", str(key), before=row.state, after=body.state.value)
            row.state, row.updated_ns = body.state.value, now_ns()
            session.flush()
        answer = opportunities.get_opportunity(session, key)
    return reply(answer)
