"""Reads the audit."""

from __future__ import annotations

import json

from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform.database.models import Audit
from tightship_platform.errors import Invalid
from tightship_platform.results.audit import AuditEntry

LIMIT_MAX = 10_000


def list_audit(
    session: Session,
    *,
    actor: str | None = None,
    action: str | None = None,
    since_ns: int | None = None,
    before_ns: int | None = None,
    limit: int = 200,
) -> list[AuditEntry]:
    """Entries, newest first.

    :param action: the whole of it (`trace.download`), or the thing only (`trace`).
    :param since_ns: none from before this time.
    :param before_ns: none from this time on; the time of the last entry of a list gives the next list.
    :raises Invalid: the limit is none.
    """
    if not 1 <= limit <= LIMIT_MAX:
        raise Invalid("limit", limit, f"a whole number from 1 to {LIMIT_MAX}")
    rows = select(Audit).order_by(Audit.time_ns.desc(), Audit.id.desc()).limit(limit)
    if actor is not None:
        rows = rows.where(Audit.actor == actor)
    if action is not None:
        rows = rows.where(
            Audit.action == action if "." in action else Audit.action.startswith(f"{action}.", autoescape=True)
        )
    if since_ns is not None:
        rows = rows.where(Audit.time_ns >= since_ns)
    if before_ns is not None:
        rows = rows.where(Audit.time_ns < before_ns)
    return [
        AuditEntry(
            time_ns=row.time_ns,
            actor=row.actor,
            action=row.action,
            target=row.target,
            detail=json.dumps(row.detail, ensure_ascii=False, sort_keys=True),
        )
        for row in session.scalars(rows)
    ]
