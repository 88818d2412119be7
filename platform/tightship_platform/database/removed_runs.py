"""Keys of runs that were removed: what comes late of one must not make it again."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform.database.models import RemovedRun


def among(session: Session, keys: Collection[str]) -> set[str]:
    """Those of the keys whose run was removed, or is being removed."""
    return set(session.scalars(select(RemovedRun.key).where(RemovedRun.key.in_(keys)))) if keys else set()
