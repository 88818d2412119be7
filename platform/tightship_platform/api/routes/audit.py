"""Who did what, for administrators."""

from __future__ import annotations

from tightship_platform.api.reply import Answer, Db
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.queries.audit import list_audit
from tightship_platform.results.audit import AuditEntry
from tightship_platform.vocabulary import Scope

router = scoped_router("audit")


@router.get("/audit", dependencies=[needs(Scope.ADMIN)], response_model=list[AuditEntry])
def audit(
    database: Db,
    actor: str | None = None,
    action: str | None = None,
    since_ns: int | None = None,
    before_ns: int | None = None,
    limit: int = 200,
) -> Answer:
    """Who did what, and what was refused, newest first. `action` is a whole one (`trace.download`) or a thing
    (`trace`)."""
    with database.session() as session:
        entries = list_audit(session, actor=actor, action=action, since_ns=since_ns, before_ns=before_ns, limit=limit)
    return Answer(entries)
