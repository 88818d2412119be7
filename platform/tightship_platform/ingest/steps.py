"""Step counts of ranks, in buckets of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, Float, case, cast, func, select
from sqlalchemy.orm import Session

from tightship_platform import validation
from tightship_platform.database.models import Run, StepStat
from tightship_platform.database.upsert import Row, insert_into, table_of


def put_steps(session: Session, rows: Sequence[Row]) -> None:
    """Insert buckets; of two records of one bucket the fuller one counts, in whatever order they come."""
    if not rows:
        return
    table = table_of(StepStat)
    statement = insert_into(session, StepStat)
    new = statement.excluded
    merged = {
        "width_ns": _greater(table.c.width_ns, new.width_ns),
        "steps": _greater(table.c.steps, new.steps),
        "first_step_ns": _smaller(table.c.first_step_ns, new.first_step_ns),
        "last_step_ns": _greater(table.c.last_step_ns, new.last_step_ns),
    }
    keys = ["run_id", "time_ns", "rank"]
    session.execute(statement.on_conflict_do_update(index_elements=keys, set_=merged), list(rows))


def counted_steps(session: Session, run: Run) -> int | None:
    """Steps of the furthest rank: what heartbeats reported or what the buckets sum to, whichever is more."""
    # In floating point, which is exact up to COUNT_MAX: whatever buckets claim, their sum does not overflow.
    of_rank = func.sum(cast(StepStat.steps, Float)).label("steps")
    per_rank = select(of_rank).where(StepStat.run_id == run.id).group_by(StepStat.rank)
    summed = session.scalar(select(func.max(per_rank.subquery().c.steps)))
    known = [min(int(count), validation.COUNT_MAX) for count in (run.steps, summed) if count is not None]
    return max(known, default=None)


def _greater(old: Column[Any], new: Any) -> Any:
    return case((new.is_(None), old), (old.is_(None), new), (new > old, new), else_=old)


def _smaller(old: Column[Any], new: Any) -> Any:
    return case((new.is_(None), old), (old.is_(None), new), (new < old, new), else_=old)
