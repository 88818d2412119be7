"""Device time that no run held, on both databases: exact, the same in any order, and kept when runs go."""

from __future__ import annotations

from random import Random

import pytest
from made_history import account_all
from records import CPU, GPU, HOUR, MIN, T0, S, batch, ended, held, samples, started
from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform import ingest
from tightship_platform.database import teams
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Run, UnallocatedDay, UnallocatedHour
from tightship_platform.queries.account import fleet_account
from tightship_platform.results.filters import Filters
from tightship_platform.results.fleet import NOBODY, FleetAccount
from tightship_platform.samples import rollups, unallocated
from tightship_platform.vocabulary import AccountBy

START = T0 - T0 % HOUR + HOUR
"""A full hour."""
NOW = START + 90 * MIN
SUMS = ("device_ns", "measured_ns", "busy_ns")


def roll_up(session: Session, now: int = NOW) -> None:
    rollups.roll_up(session, now=now)
    while rollups.roll_up_dirty(session):
        pass


def fleet(session: Session, by: AccountBy = AccountBy.TEAM, *period: int) -> FleetAccount:
    since_ns, until_ns = period or (START - HOUR, NOW)
    found = fleet_account(session, by, Filters(since_ns=since_ns, until_ns=until_ns))
    for one in found.groups:
        assert sum(one.buckets.values()) == one.device_ns
        assert (one.busy_ns or 0) + (one.idle_ns or 0) + one.unmeasured_ns == one.device_ns
    return found


def put_hour(session: Session) -> None:
    """The host reports both devices for 40 minutes, busy to a quarter; a run holds one of them for 15 and a half."""
    times = range(START, START + 40 * MIN, 10 * S)
    record = ended("a1", start_ns=START, end_ns=START + 20 * MIN)
    ingest.apply_run(session, record, now=NOW)
    reported = samples(times, "GPU-1", util_frac=0.25) + samples(times, "cpu")
    allocation = held("a1", START + 4 * MIN + 30 * S, START + 20 * MIN, device="GPU-1")
    ingest.apply_batch(session, batch(devices=[CPU, GPU], samples=reported, allocations=[allocation]), now=NOW)
    roll_up(session)
    account_all(session)


FREE = 40 * MIN - 15 * MIN - 30 * S


def test_what_no_run_held_while_its_host_reported(database: Database) -> None:
    with database.session() as session:
        put_hour(session)
        live = fleet(session)
        assert live.buckets["unallocated"] == FREE + 40 * MIN, "the other 20 minutes nobody reported"
        assert live.device_ns == FREE + 40 * MIN + 15 * MIN + 30 * S == 2 * 40 * MIN
        assert live.runs == 1
        [of_fleet] = fleet(session, AccountBy.FLEET).groups
        assert (of_fleet.key, of_fleet.runs, of_fleet.devices, of_fleet.device_ns) == ("live", 1, 1, live.device_ns)
        assert (of_fleet.buckets, of_fleet.goodput) == (live.buckets, live.goodput)
        for by in set(AccountBy) - {AccountBy.FLEET}:
            groups = {one.key: one for one in fleet(session, by).groups}
            nobody = groups.pop(NOBODY)
            assert [(one.runs, one.devices) for one in groups.values()] == [(1, 1)]
            assert (nobody.runs, nobody.devices, nobody.device_ns) == (0, None, FREE + 40 * MIN)
            assert (nobody.busy_ns, nobody.idle_ns) == (FREE // 4, FREE - FREE // 4), "of the CPU nothing was measured"
            assert nobody.unmeasured_ns == 40 * MIN
        assert live.goodput is not None and live.goodput.scheduling_frac == (15 * MIN + 30 * S) / (80 * MIN)
        assert (live.goodput.runtime_frac, live.goodput.goodput_frac) == (None, None), "it counted no steps"


def test_periods_of_the_fleet_sum_to_it(database: Database) -> None:
    with database.session() as session:
        put_hour(session)
        whole = fleet(session)
        cut = START + 13 * MIN + 7
        parts = [fleet(session, AccountBy.TEAM, *period) for period in ((START - HOUR, cut), (cut, NOW))]
        assert whole.device_ns == sum(whole.buckets.values()) == 80 * MIN
        assert sum(part.buckets["unallocated"] for part in parts) == whole.buckets["unallocated"] == FREE + 40 * MIN
        assert sum(one.busy_ns or 0 for part in parts for one in part.groups) == 40 * MIN // 4
        assert fleet(session, AccountBy.TEAM, START + HOUR, NOW).goodput is None
        assert sum(piece.buckets["unallocated"] for piece in whole.over_time) == FREE + 40 * MIN


def test_a_team_sees_nothing_of_it(database: Database) -> None:
    with database.session() as session:
        put_hour(session)
        teams.see_team("red")
        try:
            assert (fleet(session).groups, fleet(session).device_ns) == ([], 0)
        finally:
            teams.see_team(None)


def test_what_a_live_run_holds_is_not_free(database: Database) -> None:
    with database.session() as session:
        ingest.apply_run(session, started("a1", start_ns=START), now=NOW)
        reported = samples(range(START, START + 40 * MIN, 10 * S), util_frac=0.0)
        ingest.apply_batch(session, batch(devices=[CPU], samples=reported, allocations=[held("a1", START)]), now=NOW)
        session.scalars(select(Run)).one().last_seen_ns = START + 10 * MIN
        roll_up(session)
        assert session.scalars(select(UnallocatedDay)).all() == []


def test_the_minute_that_has_not_ended_waits(database: Database) -> None:
    with database.session() as session:
        times = range(START, START + 10 * MIN + 30 * S, 10 * S)
        now = START + 10 * MIN + 30 * S
        ingest.apply_batch(session, batch(devices=[CPU], samples=samples(times, util_frac=0.0)), now=now)
        unallocated.count(session, START, START + HOUR, now=now)
        assert session.scalars(select(UnallocatedDay.device_ns)).one() == 10 * MIN


def test_what_a_removed_run_held_does_not_become_free(database: Database) -> None:
    from tightship_platform.tasks.removal import runs as removal

    with database.session() as session:
        put_hour(session)
        before = fleet(session).buckets["unallocated"]
        removal._remove_rows(session, session.scalars(select(Run)).one(), keeps_names=True)
        late = samples([START + 5 * MIN + 5 * S], "GPU-1", util_frac=0.0)
        ingest.apply_batch(session, batch(devices=[GPU], samples=late), now=NOW + HOUR)
        roll_up(session, now=NOW + HOUR)
        live = fleet(session, AccountBy.TEAM, START - 24 * HOUR, START + 48 * HOUR)  # it is spread over its day
        assert live.buckets["unallocated"] == before
        assert live.device_ns == 80 * MIN


@pytest.mark.parametrize("seed", range(3))
def test_kept_sums_are_those_of_counting_once_in_any_order(database: Database, seed: int) -> None:
    """Records of two hosts over three hours, some late, some twice, counted in between as the worker does."""
    random = Random(seed)
    end = START + 3 * HOUR
    parts = []
    for host, run in (("h1", "a1"), ("h2", "b2")):
        for first in range(START, end, 30 * MIN):
            if random.random() < 0.2:
                continue
            times = range(first, first + 30 * MIN, 30 * S)
            parts.append(batch(host, devices=[CPU], samples=samples(times, util_frac=random.random())))
        cuts = sorted(random.randrange(START, end) for _ in range(6))
        for a, b in zip(cuts[::2], cuts[1::2], strict=True):
            parts.append(batch(host, devices=[CPU], allocations=[held(run, a, b)]))
    random.shuffle(parts)
    parts += random.sample(parts, 3)
    with database.session() as session:
        for host, run in (("h1", "a1"), ("h2", "b2")):
            ingest.apply_run(session, ended(run, start_ns=START, end_ns=end, host=host), now=end)
        now = end
        for part in parts:
            ingest.apply_batch(session, part, now=now)
            if random.random() < 0.4:
                now += random.randrange(10 * MIN)
                roll_up(session, now=now)
        roll_up(session, now=now + 10 * MIN)
        kept = day_sums(session)
        session.query(UnallocatedHour).delete()
        session.query(UnallocatedDay).delete()
        unallocated.count(session, START - HOUR, end + HOUR, now=now + 10 * MIN)
        assert day_sums(session) == kept
        assert sum(sums[0] for sums in kept.values()) > 0


def day_sums(session: Session) -> dict[int, tuple[int, ...]]:
    days = session.scalars(select(UnallocatedDay)).all()
    return {day.day_ns: tuple(getattr(day, name) for name in SUMS) for day in days}
