"""Findings: what a rule says about a run."""

from __future__ import annotations

from tightship_platform.api.filters import Wanted
from tightship_platform.api.reply import Answer, Db
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.database import ids
from tightship_platform.queries import findings
from tightship_platform.results.finding import Finding
from tightship_platform.vocabulary import Scope

router = scoped_router("findings")


@router.get("/findings", dependencies=[needs(Scope.READ)], response_model=list[Finding])
def list_findings(
    database: Db, filters: Wanted, run: str | None = None, after: int | None = None, limit: int = 1000
) -> Answer:
    """Findings, the largest share first; of those after the finding `after`, the last one of the page before. `since`
    and `until` are about when they were found, and `state` is their run's."""
    with database.session() as session:
        return Answer(findings.list_findings(session, filters, run=run, after=after, limit=limit))


@router.get("/findings/{key}", dependencies=[needs(Scope.READ)], response_model=Finding)
def get_finding(key: str, database: Db) -> Answer:
    """One finding."""
    with database.session() as session:
        return Answer(findings.get_finding(session, ids.find_number(session, ids.FINDING, key)))
