"""The stacks that a run's agent last brought."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform.database import models
from tightship_platform.queries.runs import find_run
from tightship_platform.results.codec import decode
from tightship_platform.results.stacks import StackDump
from tightship_platform.wire import ProcessFrames


def last_stacks(session: Session, key: str) -> StackDump | None:
    """Of a run, as a person names it; None: nobody ever asked.

    :raises NotFound: there is no such run.
    :raises Ambiguous: several ids of runs begin so.
    """
    run = find_run(session, key)
    row = session.scalar(select(models.StackDump).where(models.StackDump.run_id == run.id))
    if row is None:
        return None
    return StackDump(
        run=run.key,
        host=run.host_name,
        requested_by=row.requested_by,
        requested_ns=row.requested_ns,
        taken_ns=row.taken_ns,
        processes=decode(list[ProcessFrames], row.processes, f"Stacks of run {run.key}"),
    )
