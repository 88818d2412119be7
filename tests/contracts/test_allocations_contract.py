"""Allocations on both databases: one allocation, whoever reports it and in whatever order."""

from __future__ import annotations

from typing import Any

from examples import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from records import CPU, GPU, MIN, T0, S, batch, beat, ended, held, live, started
from sqlalchemy import select

from tightship_platform import ingest
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Allocation, Base
from tightship_platform.queries import runs
from tightship_platform.wire import AllocationRecord

NOW = T0 + MIN


def _rows(database: Database, model: type[Base], *without: str) -> list[dict[str, Any]]:
    with database.session() as session:
        columns = [c for c in model.__table__.columns if c.name not in without]
        return [dict(row) for row in session.execute(select(*columns).order_by(*columns)).mappings()]


def _held(database: Database) -> list[tuple[int, int | None]]:
    """Allocations as (start, end), relative to T0."""
    rows = _rows(database, Allocation)
    spans = [(row["start_ns"] - T0, None if row["end_ns"] is None else row["end_ns"] - T0) for row in rows]
    return sorted(spans, key=lambda span: span[0])


# ---- allocations -----------------------------------------------------------------------------------------------------


@st.composite
def _histories(draw: st.DrawFn) -> tuple[list[AllocationRecord], list[tuple[int, int | None]]]:
    """What an agent reports of disjoint allocations, shuffled and more than once; and what is true."""
    marks = sorted(draw(st.sets(st.integers(1, 40), min_size=2, max_size=8)))
    pairs = [(marks[i], marks[i + 1]) for i in range(0, len(marks) - 1, 2)]
    truth: list[tuple[int, int | None]] = list(pairs)
    if draw(st.booleans()):
        truth[-1] = (pairs[-1][0], None)
    said = [held(start_ns=T0 + start * S) for start, _ in truth]
    said += [held(start_ns=T0 + start * S, end_ns=T0 + end * S) for start, end in truth if end is not None]
    repeated = said + draw(st.lists(st.sampled_from(said), max_size=6))
    return draw(st.permutations(repeated)), [(start * S, None if end is None else end * S) for start, end in truth]


@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=_histories())
def test_any_order_of_allocations_gives_the_same_rows(
    database: Database, history: tuple[list[AllocationRecord], list[tuple[int, int | None]]]
) -> None:
    said, truth = history
    with database.session() as session:
        session.execute(Allocation.__table__.delete())  # type: ignore[attr-defined]
        for record in said:
            ingest.apply_batch(session, batch(devices=[CPU], allocations=[record]), now=NOW)
    assert _held(database) == truth


def test_a_heartbeat_and_a_record_of_the_same_holding_are_one(database: Database) -> None:
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        gpu = live(devices=["GPU-1"], since_ns=T0)
        ingest.apply_heartbeat(session, beat(gpu, time_ns=T0 + 10 * S, devices=[GPU]), now=NOW)
    assert _held(database) == [(10 * S, None)]
    with database.session() as session:  # the agent saw it earlier
        ingest.apply_batch(session, batch(allocations=[held(start_ns=T0 + 8 * S, device="GPU-1")]), now=NOW)
        assert runs.get_run(session, "a1").device_ns == NOW - T0 - 8 * S
    assert _held(database) == [(8 * S, 10 * S), (10 * S, None)]
    with database.session() as session:
        closed = held(start_ns=T0 + 8 * S, end_ns=T0 + 20 * S, device="GPU-1")
        ingest.apply_batch(session, batch(allocations=[closed]), now=NOW)
        ingest.apply_heartbeat(session, beat(gpu, time_ns=T0 + 15 * S), now=NOW)  # late
    assert _held(database) == [(8 * S, 20 * S)]
    with database.session() as session:
        ingest.apply_heartbeat(session, beat(gpu, time_ns=T0 + 30 * S), now=NOW)  # taken again
    assert _held(database) == [(8 * S, 20 * S), (30 * S, None)]


def test_the_end_of_the_run_ends_all_holding(database: Database) -> None:
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        records = [held(), held(start_ns=T0 + S, end_ns=T0 + 20 * S, device="GPU-1")]
        ingest.apply_batch(session, batch(allocations=records), now=NOW)
        ingest.apply_run(session, ended(end_ns=T0 + 10 * S), now=NOW)
        assert runs.get_run(session, "a1").device_ns == 19 * S
        # The agent notices later, and says so in its own way.
        late = [held(end_ns=T0 + 11 * S), held(start_ns=T0 + 2 * S, device="GPU-2")]
        ingest.apply_batch(session, batch(allocations=late), now=NOW)
        assert runs.get_run(session, "a1").device_ns == 27 * S
    assert _held(database) == [(0, 10 * S), (S, 10 * S), (2 * S, 10 * S)]
