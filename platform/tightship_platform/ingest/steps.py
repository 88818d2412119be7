"""Step counts of ranks, in buckets of time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import BigInteger, Column, Float, case, cast, func, select, update
from sqlalchemy.orm import Session

from tightship_platform import validation
from tightship_platform.database.models import Run, StepStat
from tightship_platform.database.upsert import (
    ROWS_AT_ONCE,
    Columns,
    Row,
    as_columns,
    insert_into,
    put_columns,
    table_of,
)


def put_steps(session: Session, rows: Sequence[Row]) -> None:
    """Insert buckets; of two records of one bucket the fuller one counts, in whatever order they come."""
    if not rows:
        return
    all_differ = len({(row["run_id"], row["time_ns"], row["rank"]) for row in rows}) == len(rows)
    if all_differ and session.get_bind().dialect.name == "postgresql":
        for first in range(0, len(rows), ROWS_AT_ONCE):
            put_new_steps(session, as_columns(rows[first : first + ROWS_AT_ONCE]))
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


def put_new_steps(session: Session, columns: Columns) -> None:
    """As `put_steps`, of buckets given by column, all different."""
    if session.get_bind().dialect.name != "postgresql":
        put_steps(session, [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])
        return
    # Both of these ignore nulls.
    greatest = {name: f"greatest(step_stat.{name}, excluded.{name})" for name in ("width_ns", "steps", "last_step_ns")}
    merge = greatest | {"first_step_ns": "least(step_stat.first_step_ns, excluded.first_step_ns)"}
    put_columns(session, StepStat, columns, merge=merge)


def count_steps(session: Session, runs: Collection[Run]) -> None:
    """Set the steps of each run to those of its furthest rank: what heartbeats reported or what its buckets sum to,
    whichever is more; None when neither is known."""
    if not runs:
        return
    # In floating point, which is exact up to COUNT_MAX: whatever buckets claim, their sum does not overflow.
    summed = func.sum(cast(StepStat.steps, Float)).label("steps")
    of_ranks = select(StepStat.run_id, summed).where(StepStat.run_id.in_([run.id for run in runs]))
    per_rank = of_ranks.group_by(StepStat.run_id, StepStat.rank).subquery()
    furthest = select(per_rank.c.run_id, func.max(per_rank.c.steps)).group_by(per_rank.c.run_id)
    found = {run_id: min(int(steps), validation.COUNT_MAX) for run_id, steps in session.execute(furthest)}
    for run in runs:
        run.steps = max((count for count in (run.steps, found.get(run.id)) if count is not None), default=None)


def count_first_steps(session: Session, run_ids: Collection[int]) -> None:
    """As `count_steps`, of runs whose steps nobody has counted; says nothing back."""
    if not run_ids:
        return
    summed = func.sum(cast(StepStat.steps, Float)).label("steps")
    per_rank = select(summed).where(StepStat.run_id == Run.id).group_by(StepStat.rank).correlate(Run).subquery()
    most = func.max(per_rank.c.steps)
    furthest = select(cast(case((most > validation.COUNT_MAX, validation.COUNT_MAX), else_=most), BigInteger))
    uncounted = update(Run).where(Run.id.in_(run_ids), Run.steps.is_(None)).values(steps=furthest.scalar_subquery())
    session.connection().execute(uncounted.execution_options(synchronize_session=False))


def _greater(old: Column[Any], new: Any) -> Any:
    return case((new.is_(None), old), (old.is_(None), new), (new > old, new), else_=old)


def _smaller(old: Column[Any], new: Any) -> Any:
    return case((new.is_(None), old), (old.is_(None), new), (new < old, new), else_=old)
