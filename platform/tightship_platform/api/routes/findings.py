"""Findings: what a rule says about a run."""

from __future__ import annotations

from starlette.responses import JSONResponse

from tightship_platform.api.reply import Db, reply
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.queries import findings
from tightship_platform.vocabulary import Scope

router = scoped_router("findings")


@router.get("/findings", dependencies=[needs(Scope.READ)], response_model=None)
def list_findings(database: Db, run: str | None = None, workflow: str | None = None, limit: int = 1000) -> JSONResponse:
    """Findings, the largest share first: finding, rule, title, run, workflow, trace, rank, where, fix,
    saving{value, unit, low, high, method, share_frac}, evidence."""
    with database.session() as session:
        return reply(findings.list_findings(session, run=run, workflow=workflow, limit=limit))


@router.get("/findings/{key}", dependencies=[needs(Scope.READ)], response_model=None)
def get_finding(key: int, database: Db) -> JSONResponse:
    """One finding."""
    with database.session() as session:
        return reply(findings.get_finding(session, key))
