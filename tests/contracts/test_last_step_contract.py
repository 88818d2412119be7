"""When a run made its last step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from records import MIN, T0, S, batch, started, steps
from sqlalchemy import insert
from sqlalchemy.orm import Session

from tightship_platform import ingest
from tightship_platform.database.engine import Database
from tightship_platform.database.models import StepStat
from tightship_platform.queries import runs


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with database.session() as session:
        yield session


def test_the_last_step_is_the_latest_of_all_ranks(session: Session) -> None:
    """Also of one whose bucket began earlier; a bucket without an end of a step says nothing."""
    ingest.apply_run(session, started("a1"), now=T0)
    assert runs.get_run(session, "a1").last_step_ns is None
    late = batch("h1", steps=[*steps([T0, T0 + 10 * S], "a1", width_ns=10 * S), *steps([T0 + 12 * S], "a1", rank=1)])
    late.steps[1].last_step_ns = T0 + 19 * S
    late.steps[2].last_step_ns = T0 + 13 * S
    silent = steps([T0 + 20 * S], "a1", each=0)
    silent[0].first_step_ns = silent[0].last_step_ns = None
    late.steps += silent
    ingest.apply_batch(session, late, now=T0 + 60 * S)
    assert runs.get_run(session, "a1").last_step_ns == T0 + 19 * S
    wide = steps([T0 + 30 * S], "a1", rank=2, width_ns=60 * S)
    ingest.apply_batch(session, batch("h1", steps=wide), now=T0 + 100 * S)
    assert runs.get_run(session, "a1").last_step_ns == T0 + 60 * S


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_the_last_step_of_a_long_run_is_read_as_soon_as_that_of_a_short_one(database: Database) -> None:
    worked = []
    with database.session() as session:
        for key, buckets in (("a1", 10), ("b2", 5000)):
            ingest.apply_run(session, started(key), now=T0)
            run_id = runs.find_run(session, key).id
            bucket = {"run_id": run_id, "rank": 0, "width_ns": MIN, "steps": 1}
            rows = [bucket | {"time_ns": T0 + n * MIN, "last_step_ns": T0 + n} for n in range(buckets)]
            session.execute(insert(StepStat), rows)
            counted = [0]
            driver = session.connection().connection.driver_connection
            driver.set_progress_handler(lambda counted=counted: counted.__setitem__(0, counted[0] + 1) or 0, 10)
            assert runs._last_step_ns(session, run_id) == T0 + buckets - 1
            driver.set_progress_handler(None, 0)
            worked.append(counted[0])
    assert worked[1] <= 2 * worked[0] + 5, "tens of the database's instructions"
