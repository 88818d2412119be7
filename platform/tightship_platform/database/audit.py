"""The record of who did what."""

from __future__ import annotations

from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from tightship_platform.database.engine import Database
from tightship_platform.database.models import Audit
from tightship_platform.units import NS_PER_S, now_ns

AT_ONCE = 1000


def audit(session: Session, actor: str, action: str, target: str, **detail: Any) -> None:
    """Write down that `actor` did `action` (`<thing>.<verb>`) to `target`, within the caller's transaction."""
    session.add(Audit(time_ns=now_ns(), actor=actor, action=action, target=target, detail=detail))


def remove_old_entries(database: Database, keep_days: int, *, now: int | None = None) -> int:
    """Remove entries older than `keep_days`, reckoned from the newest where the clock is ahead of it; 0: none.

    :returns: how many went, AT_ONCE in a transaction.
    """
    if keep_days == 0:
        return 0
    with database.session() as session:
        newest_ns = session.scalar(select(func.max(Audit.time_ns))) or 0
    until_ns = min(now_ns() if now is None else now, newest_ns) - keep_days * 86_400 * NS_PER_S
    count = 0
    while True:
        with database.session() as session:
            old = select(Audit.id).where(Audit.time_ns < until_ns).order_by(Audit.time_ns).limit(AT_ONCE)
            ids = session.scalars(old).all()
            session.execute(delete(Audit).where(Audit.id.in_(ids)).execution_options(synchronize_session=False))
        count += len(ids)
        if len(ids) < AT_ONCE:
            return count
