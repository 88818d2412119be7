"""Rollups on both databases: means that are right, the same however often they are made."""

from __future__ import annotations

from typing import Any

import pytest
from records import CPU, GPU, HOUR, MIN, T0, S, batch, ended, held, samples, started
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from tightship_platform import ingest
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Device, DirtyHour, Rollup, Run
from tightship_platform.samples import dirty_hours, rollups

START = T0 - T0 % HOUR
"""A full hour."""
NOW = START + 90 * MIN


def _rows(session: Session, width_ns: int) -> list[dict[str, Any]]:
    rows = session.execute(
        select(Run.key, Device.uuid, *Rollup.__table__.columns)
        .join(Run, Run.id == Rollup.run_id)
        .join(Device, Device.id == Rollup.device_id)
        .where(Rollup.width_ns == width_ns)
        .order_by(Run.key, Device.uuid, Rollup.time_ns)
    )
    return [dict(row) for row in rows.mappings()]


def _roll_up(session: Session, now: int) -> int:
    """As the worker does it."""
    rows = rollups.roll_up(session, now=now)
    while rollups.roll_up_dirty(session):
        pass
    return rows


def test_minutes_and_hours_are_means(database: Database) -> None:
    with database.session() as session:
        ingest.apply_run(session, started(start_ns=START), now=NOW)
        reported = samples(range(START, START + 60 * MIN, 10 * S), util_frac=0.25, memory_used_bytes=101, power_w=10.0)
        reported += samples(range(START + 5 * S, START + 30 * MIN, 10 * S), util_frac=0.75)
        ingest.apply_batch(session, batch(devices=[CPU], samples=reported, allocations=[held(start_ns=START)]), now=NOW)
        assert _roll_up(session, now=NOW) == 60
        minutes, hours = _rows(session, rollups.MINUTE_NS), _rows(session, rollups.HOUR_NS)
    assert [row["time_ns"] for row in minutes] == [START + i * MIN for i in range(60)]
    assert [row["samples"] for row in minutes] == [12] * 30 + [6] * 30
    assert [row["util_frac"] for row in minutes] == [0.5] * 30 + [0.25] * 30
    assert {(row["memory_used_bytes"], row["power_w"], row["sm_active_frac"]) for row in minutes} == {(101, 10.0, None)}
    (hour,) = hours
    assert (hour["time_ns"], hour["samples"], hour["memory_used_bytes"]) == (START, 540, 101)
    assert abs(hour["util_frac"] - (0.5 * 360 + 0.25 * 180) / 540) < 1e-12


def test_rolling_up_again_changes_nothing_but_what_is_new(database: Database) -> None:
    with database.session() as session:
        ingest.apply_run(session, started(start_ns=START), now=NOW)
        part = batch(devices=[CPU], allocations=[held(start_ns=START)], samples=samples([START + S], util_frac=0.5))
        ingest.apply_batch(session, part, now=NOW)
        _roll_up(session, now=NOW)
        before = _rows(session, rollups.MINUTE_NS)
        _roll_up(session, now=NOW)
        _roll_up(session, now=NOW + MIN)
        assert _rows(session, rollups.MINUTE_NS) == before
        ingest.apply_batch(session, batch(samples=samples([START + 2 * S], util_frac=1.0)), now=NOW)
        _roll_up(session, now=NOW)
        (row,) = _rows(session, rollups.MINUTE_NS)
    assert (row["samples"], row["util_frac"]) == (2, 0.75)


def test_only_the_time_that_a_run_held_the_device_counts(database: Database) -> None:
    with database.session() as session:
        for key in ("a1", "b2"):
            ingest.apply_run(session, started(key, start_ns=START), now=NOW)
        allocations = [
            held("a1", START, START + MIN),
            held("b2", START + MIN + 30 * S, START + 2 * MIN),
            held("b2", START + 3 * MIN, device="GPU-1"),
        ]
        reported = samples(range(START, START + 4 * MIN, S), util_frac=0.5)
        reported += samples(range(START, START + 4 * MIN, S), "GPU-1", util_frac=0.25)
        ingest.apply_batch(session, batch(devices=[CPU, GPU], samples=reported, allocations=allocations), now=NOW)
        _roll_up(session, now=NOW)
        rows = _rows(session, rollups.MINUTE_NS)
    assert [(row["key"], row["uuid"], (row["time_ns"] - START) // MIN, row["samples"]) for row in rows] == [
        ("a1", "cpu", 0, 60),
        ("b2", "GPU-1", 3, 60),
        ("b2", "cpu", 1, 30),
    ]


def test_two_runs_that_share_a_device_have_each_their_row(database: Database) -> None:
    with database.session() as session:
        for key in ("a1", "b2"):
            ingest.apply_run(session, started(key, start_ns=START), now=NOW)
        reported = batch(
            devices=[CPU],
            samples=samples(range(START, START + MIN, S), util_frac=0.5),
            allocations=[held("a1", START), held("b2", START)],
        )
        ingest.apply_batch(session, reported, now=NOW)
        _roll_up(session, now=NOW)
        assert [(row["key"], row["samples"]) for row in _rows(session, rollups.MINUTE_NS)] == [("a1", 60), ("b2", 60)]


def test_what_comes_very_late_is_rolled_up_as_it_comes(database: Database) -> None:
    """A host that was cut off for a day delivers its spool: the last two hours are all that `roll_up` looks at."""
    much_later = START + 26 * HOUR
    with database.session() as session:
        ingest.apply_run(session, ended(start_ns=START, end_ns=START + 2 * HOUR), now=much_later)
        for first in range(START, START + 2 * HOUR, 10 * MIN):
            times = range(first, first + 10 * MIN, 10 * S)
            part = batch(devices=[CPU], allocations=[held(start_ns=START)], samples=samples(times, util_frac=0.5))
            ingest.apply_batch(session, part, now=much_later)
            ingest.apply_batch(session, part, now=much_later)
        _roll_up(session, now=much_later)
        minutes, hours = _rows(session, rollups.MINUTE_NS), _rows(session, rollups.HOUR_NS)
    assert [row["samples"] for row in minutes] == [6] * 120
    assert [(row["samples"], row["util_frac"]) for row in hours] == [(360, 0.5), (360, 0.5)]


def test_samples_after_the_end_do_not_count(database: Database) -> None:
    with database.session() as session:
        ingest.apply_run(session, started(start_ns=START), now=NOW)
        reported = samples(range(START, START + 3 * MIN, S), util_frac=0.5)
        ingest.apply_batch(session, batch(devices=[CPU], samples=reported, allocations=[held(start_ns=START)]), now=NOW)
        _roll_up(session, now=NOW)
        assert len(_rows(session, rollups.MINUTE_NS)) == 3
        ingest.apply_run(session, ended(start_ns=START, end_ns=START + MIN + 10 * S), now=NOW)
        _roll_up(session, now=NOW)
        assert [row["samples"] for row in _rows(session, rollups.MINUTE_NS)] == [60, 10]


def test_each_minute_is_made_about_twice(database: Database) -> None:
    """Two hours of a run: not made again every time, and complete all the same, also the hours."""
    with database.session() as session:
        ingest.apply_run(session, started(start_ns=START), now=START)
        ingest.apply_batch(session, batch(devices=[CPU], allocations=[held(start_ns=START)]), now=START)
        made = []
        for now in range(START + 30 * S, START + 2 * HOUR + MIN, 30 * S):
            times = range(now - 30 * S, now, 10 * S)
            ingest.apply_batch(session, batch(samples=samples(times, util_frac=0.5)), now=now + S)
            made.append(rollups.roll_up(session, now=now + 2 * S))
        assert max(made) <= 4
        assert rollups.roll_up_dirty(session) == 0
        minutes = _rows(session, rollups.MINUTE_NS)
        assert [row["samples"] for row in minutes] == [6] * 120 + [3]
        _roll_up(session, START + 2 * HOUR + 11 * MIN)
        assert [row["samples"] for row in _rows(session, rollups.HOUR_NS)] == [360, 360, 3]


def test_a_worker_that_was_away_catches_up_in_parts(database: Database) -> None:
    with database.session() as session:
        ingest.apply_run(session, started(start_ns=START), now=START)
        ingest.apply_batch(session, batch(devices=[CPU], allocations=[held(start_ns=START)]), now=START)
        rollups.roll_up(session, now=START + MIN)
        for now in range(START + 30 * MIN, START + 6 * HOUR + MIN, 30 * MIN):
            ingest.apply_batch(session, batch(samples=samples([now - S], util_frac=0.5)), now=now)
        made = [rollups.roll_up(session, now=START + 6 * HOUR) for _ in range(4)]
        assert max(made) <= 5
        assert len(_rows(session, rollups.MINUTE_NS)) == 12
        assert sum(row["samples"] for row in _rows(session, rollups.HOUR_NS)) == 12


def test_a_batch_from_long_ago_makes_no_rollups_itself(database: Database) -> None:
    with database.session() as session:
        ingest.apply_run(session, started(start_ns=START), now=START)
        late = batch(devices=[CPU], allocations=[held(start_ns=START)], samples=samples([START + S], util_frac=0.5))
        ingest.apply_batch(session, late, now=START + 20 * HOUR)
        assert _rows(session, rollups.MINUTE_NS) == []
        rollups.roll_up(session, now=START + 20 * HOUR)
        assert _rows(session, rollups.MINUTE_NS) == []
        while rollups.roll_up_dirty(session):
            pass
        assert [row["samples"] for row in _rows(session, rollups.MINUTE_NS)] == [1]


@pytest.mark.parametrize("had_rolled_up", [True, False])
def test_hours_that_servers_of_the_release_before_did_not_mark_are_made_again(
    database: Database, had_rolled_up: bool
) -> None:
    """During a rolling upgrade the worker may be replaced first; a host that was away comes back to an old server."""
    with database.session() as session:
        ingest.apply_run(session, started(start_ns=START), now=START)
        ingest.apply_batch(session, batch(devices=[CPU], allocations=[held(start_ns=START)]), now=START)
        ingest.apply_batch(session, batch(samples=samples([START + S], util_frac=0.5)), now=START + 2 * S)
        if had_rolled_up:
            rollups.roll_up_range(session, START, START + MIN)  # by the old worker
        upgraded = START + 2 * HOUR
        rollups.roll_up(session, now=upgraded)
        for late, age in ((10 * MIN, 100 * MIN), (20 * HOUR, 100 * MIN)):
            now = upgraded + late
            for _ in range(12):
                rollups.roll_up(session, now=now)
            ingest.apply_batch(session, batch(samples=samples([now - age], util_frac=0.5)), now=now)
            session.execute(delete(DirtyHour))
            made = [rollups.roll_up(session, now=now + k * 30 * S) for k in range(1, 11)]
            assert sorted(made) == [0] * 9 + [1], "once in five minutes"
        assert sum(row["samples"] for row in _rows(session, rollups.MINUTE_NS)) == 3
        after = upgraded + rollups.UPGRADE_NS
        assert sum(rollups.roll_up(session, now=after + k * 30 * S) for k in range(60)) == 0
        assert sum(row["samples"] for row in _rows(session, rollups.HOUR_NS)) == 3


def test_what_is_marked_while_it_is_made_again_stays_marked(database: Database) -> None:
    with database.session() as session:
        ingest.apply_run(session, started(start_ns=START), now=START)
        ingest.apply_batch(session, batch(devices=[CPU], allocations=[held(start_ns=START)]), now=START)
        (device,) = session.scalars(select(Device.id))
        dirty_hours.mark(session, [(device, START)])
        read = dirty_hours.some(session, 10)
        session.expunge_all()
        dirty_hours.mark(session, [(device, START)])
        dirty_hours.unmark(session, read)
        assert rollups.roll_up_dirty(session) == 1
        assert rollups.roll_up_dirty(session) == 0


def test_an_end_that_comes_late_takes_back_what_was_rolled_up_after_it(database: Database) -> None:
    now = START + 5 * HOUR
    with database.session() as session:
        ingest.apply_run(session, started(start_ns=START), now=START)
        ingest.apply_batch(session, batch(devices=[CPU], allocations=[held(start_ns=START)]), now=START)
        times = range(START, now, 10 * MIN)
        ingest.apply_batch(session, batch(samples=samples(times, util_frac=0.5)), now=now)
        _roll_up(session, now)
        assert len(_rows(session, rollups.MINUTE_NS)) == len(times)
        ingest.apply_run(session, ended(start_ns=START, end_ns=START + 90 * MIN), now=now)
        _roll_up(session, now)
        assert len(_rows(session, rollups.MINUTE_NS)) == 9
        assert [row["samples"] for row in _rows(session, rollups.HOUR_NS)] == [6, 3]


def test_an_allocation_that_is_known_late_counts_from_its_start(database: Database) -> None:
    now = START + 3 * HOUR
    with database.session() as session:
        ingest.apply_run(session, started(start_ns=START), now=START)
        ingest.apply_batch(session, batch(devices=[CPU], samples=samples(range(START, now, 10 * MIN))), now=now)
        _roll_up(session, now)
        assert _rows(session, rollups.MINUTE_NS) == []
        ingest.apply_batch(session, batch(allocations=[held(start_ns=START)]), now=now)
        _roll_up(session, now)
        assert len(_rows(session, rollups.MINUTE_NS)) == 18
        # Repeated every minute, it marks nothing.
        ingest.apply_batch(session, batch(allocations=[held(start_ns=START)]), now=now + MIN)
        assert rollups.roll_up_dirty(session) == 0
