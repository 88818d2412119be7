"""Opportunities: what to do first, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass

from tightship_platform import validation
from tightship_platform.api.auth import require
from tightship_platform.api.reply import Answer, Db
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.database.audit import audit
from tightship_platform.database.engine import Database
from tightship_platform.ingest.actions.act import act
from tightship_platform.ingest.actions.verify import predicted_between, verify
from tightship_platform.queries import actions, opportunities
from tightship_platform.queries.runs import find_run
from tightship_platform.results.action import Action, Verification
from tightship_platform.results.filters import Filters, imported_fleet
from tightship_platform.results.opportunity import Opportunity
from tightship_platform.vocabulary import ActionKind, Scope

router = scoped_router("opportunities")


@dataclass(kw_only=True)
class Reason:
    """Why somebody does something about an opportunity."""

    reason: str
    """On one line."""


@dataclass(kw_only=True)
class Note:
    """What somebody says who applies an opportunity."""

    reason: str | None = None
    """On one line, such as the commit that has the change. Null: nothing."""


@router.get("/opportunities", dependencies=[needs(Scope.READ)], response_model=list[Opportunity])
def list_opportunities(
    database: Db, fleet: str | None = None, dismissed: bool = False, after: int | None = None, limit: int = 1000
) -> Answer:
    """Opportunities of the live fleet, or of an imported one, the first in the ranking first; of those after the
    opportunity `after`, the last one of the page before. Those that were dismissed only where `dismissed` is true."""
    with database.session() as session:
        return Answer(
            opportunities.list_opportunities(
                session, fleet=imported_fleet(fleet), dismissed=dismissed, after=after, limit=limit
            )
        )


@router.post("/opportunities/{key}/apply", dependencies=[needs(Scope.APPLY)], response_model=Action)
def apply(key: int, body: Note, database: Db) -> Answer:
    """Say that an open opportunity is applied; answers the change to make, and the saving that is predicted. The next
    run of its workflow is compared with the last one before."""
    return _act(database, key, ActionKind.APPLY, body.reason)


@router.post("/opportunities/{key}/dismiss", dependencies=[needs(Scope.APPLY)], response_model=Action)
def dismiss(key: int, body: Reason, database: Db) -> Answer:
    """Dismiss an opportunity: lists leave it out. Answers the action."""
    return _act(database, key, ActionKind.DISMISS, _given(body))


@router.post("/opportunities/{key}/reopen", dependencies=[needs(Scope.APPLY)], response_model=Action)
def reopen(key: int, body: Reason, database: Db) -> Answer:
    """Open an opportunity again that was dismissed, applied, verified or refuted. Answers the action."""
    return _act(database, key, ActionKind.REOPEN, _given(body))


@router.get("/actions", dependencies=[needs(Scope.READ)], response_model=list[Action])
def list_actions(
    database: Db,
    opportunity: int | None = None,
    workflow: str | None = None,
    team: str | None = None,
    state: str | None = None,
    after: int | None = None,
    limit: int = 1000,
) -> Answer:
    """What was done about all opportunities or one, and what came of it, the newest first; of those after the action
    `after`, the last one of the page before. `state` is one of applications: `applied`, `verified`, `refuted` or
    `withdrawn`."""
    filters = Filters(workflow=workflow, team=team, state=state)
    with database.session() as session:
        return Answer(actions.list_actions(session, opportunity=opportunity, filters=filters, after=after, limit=limit))


@router.get("/verify", dependencies=[needs(Scope.READ)], response_model=Verification)
def compare(database: Db, before: str, after: str) -> Answer:
    """Compare the steps of two runs of one workflow, like with like: what a step takes less in the later one."""
    with database.session() as session:
        pair = find_run(session, before), find_run(session, after)
        return Answer(verify(session, *pair, predicted_between(session, *pair)))


def _given(body: Reason) -> str:
    return validation.name("Reason", body.reason)


def _act(database: Database, key: int, kind: ActionKind, reason: str | None) -> Answer:
    caller = require(Scope.APPLY)
    with database.session() as session:
        opportunities.find_opportunity(session, key)
        row = act(session, key, kind, actor=caller.name, reason=reason)
        audit(session, caller.name, f"opportunity.{kind}", str(key), number=row.id, reason=row.reason)
        answer = actions.get_action(session, row.id)
    return Answer(answer)
