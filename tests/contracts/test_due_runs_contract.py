"""What is due is found by an index, whatever the number of runs that ever were."""

from __future__ import annotations

from typing import Any

import pytest
from records import HOUR, T0, ended
from sqlalchemy import event, text, update
from sqlalchemy.orm import Session

from tightship_analyzers.fleet import accounting, idleness
from tightship_platform import ingest
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Run

NOW = T0 + 1000 * HOUR


@pytest.mark.parametrize(("due", "index"), [(accounting.due_runs, "unsettled"), (idleness.due_runs, "unjudged")])
def test_only_an_index_of_what_may_be_due_is_read(database: Database, due: Any, index: str) -> None:
    with database.session() as session:
        for number in range(30):
            ingest.apply_run(session, ended(f"r{number}", start_ns=T0, end_ns=T0 + HOUR), now=T0 + HOUR)
        session.execute(update(Run).values(accounted_ns=T0 + 9 * HOUR, judged_ns=T0 + 9 * HOUR))
        assert due(session, now=NOW) == []
        session.execute(update(Run).where(Run.key == "r7").values(accounted_ns=T0 + HOUR, judged_ns=None))
        assert len(due(session, now=NOW)) == 1
        assert f"ix_run_{index}" in _plan(session, due)


def _plan(session: Session, due: Any) -> str:
    """How the database finds the answer, where it does not think that a table of 30 rows is read faster."""
    seen: list[tuple[str, Any]] = []
    is_postgres = session.get_bind().dialect.name == "postgresql"
    if is_postgres:
        session.execute(text("SET LOCAL enable_seqscan = off"))
    connection = session.connection()

    def remember(_c: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        seen.append((statement, values))

    event.listen(connection, "before_cursor_execute", remember)
    due(session, now=NOW)
    event.remove(connection, "before_cursor_execute", remember)
    statement, values = seen[-1]
    rows = connection.exec_driver_sql(f"EXPLAIN {'' if is_postgres else 'QUERY PLAN '}{statement}", values)
    return "\n".join(str(row) for row in rows)
