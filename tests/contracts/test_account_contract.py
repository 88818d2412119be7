"""The account of a fleet: exact sums, of periods and their parts, by group and over time; on both databases."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from records import HOUR, MIN, T0, S, ended
from sqlalchemy import delete
from sqlalchemy.orm import Session

from tightship_platform import ingest
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Run, RunAccount, RunActivity
from tightship_platform.errors import Invalid
from tightship_platform.queries import account, account_sums, runs
from tightship_platform.results.filters import Filters
from tightship_platform.results.fleet import NO_TEAM, FleetAccount
from tightship_platform.vocabulary import AccountBy, Bucket

NOW = T0 + MIN


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    """A session on an empty database."""
    with database.session() as opened:
        yield opened


def _run(session: Session, key: str = "a1", workflow: str = "train", *, end_ns: int = T0 + 10 * S, **more: Any) -> Run:
    ingest.apply_run(session, ended(key, workflow, end_ns=end_ns, **more), now=NOW)
    return runs.find_run(session, key)


def _account(session: Session, run: Run, at_ns: int = NOW, **buckets: int) -> None:
    session.execute(delete(RunAccount).where(RunAccount.run_id == run.id))
    session.add_all(RunAccount(run_id=run.id, bucket=bucket, device_ns=ns) for bucket, ns in buckets.items())
    run.accounted_ns = at_ns
    session.flush()


def test_the_fleet_sums_exactly(session: Session) -> None:
    noise = random.Random(7)
    for number in range(12):
        start_ns = T0 + noise.randrange(HOUR)
        end_ns = start_ns + noise.randrange(1, HOUR)
        team = [None, "vision", "speech"][number % 3]
        ingest.apply_run(
            session,
            ended(f"r{number}", f"w{number % 4}", start_ns=start_ns, end_ns=end_ns, team=team),
            now=T0 + 3 * HOUR,
        )
        parts = {bucket.value: noise.randrange(10**13) for bucket in list(Bucket)[: 1 + number % 5]}
        run = runs.find_run(session, f"r{number}")
        _account(session, run, **parts)
        if number % 2:
            busy_ns = noise.randrange(1 + sum(parts.values()))
            idle_ns = (
                sum(parts.values()) - busy_ns if number % 3 else noise.randrange(1 + sum(parts.values()) - busy_ns)
            )
            session.add(RunActivity(run_id=run.id, busy_ns=busy_ns, idle_ns=idle_ns, long_idle_ns=0))
    whole = _fleet(session, T0, T0 + 3 * HOUR)
    assert whole.runs == 12
    assert whole.device_ns == sum(run.device_ns for run in runs.list_runs(session))
    _check_sums(whole)
    # Periods that meet add up to the whole, wherever they are cut.
    for cut in (T0 + 1, T0 + 17 * MIN + 3, T0 + HOUR, T0 + 2 * HOUR):
        before, after = _fleet(session, T0, cut), _fleet(session, cut, T0 + 3 * HOUR)
        for bucket, ns in whole.buckets.items():
            assert before.buckets[bucket] + after.buckets[bucket] == ns
        for name in ("busy_ns", "idle_ns", "unmeasured_ns"):
            of_part, of_whole = (
                [getattr(group, name) or 0 for one in of for group in one.groups] for of in ((before, after), (whole,))
            )
            assert sum(of_part) == sum(of_whole)
        _check_sums(before)
        _check_sums(after)


def _fleet(session: Session, since_ns: int, until_ns: int, by: AccountBy = AccountBy.WORKFLOW) -> FleetAccount:
    return account.fleet_account(session, by, Filters(since_ns=since_ns, until_ns=until_ns))


def _check_sums(whole: FleetAccount) -> None:
    for parts in ([group.buckets for group in whole.groups], [one.buckets for one in whole.over_time]):
        for bucket, ns in whole.buckets.items():
            assert sum(part[bucket] for part in parts) == ns
    assert sum(whole.buckets.values()) == whole.device_ns == whole.unproductive_ns + whole.buckets["productive"]
    assert set(whole.buckets) == set(map(str, Bucket))
    assert len(whole.over_time) <= account_sums.SLICES + 1
    wasted = [group.unproductive_ns for group in whole.groups]
    assert wasted == sorted(wasted, reverse=True)
    for group in whole.groups:
        assert sum(group.buckets.values()) == group.device_ns
        assert (group.busy_ns or 0) + (group.idle_ns or 0) + group.unmeasured_ns == group.device_ns
        assert min(group.busy_ns or 0, group.idle_ns or 0, group.unmeasured_ns) >= 0


def test_the_fleet_says_what_it_lacks_and_what_is_simulated(session: Session) -> None:
    run = _run(session)
    _run(session, "b2")
    _account(session, run, productive=5)
    found = _fleet(session, T0 - S, T0 + MIN, AccountBy.TEAM)
    assert (found.runs, found.unaccounted_runs, found.simulated) == (1, 1, False)
    assert {group.key: group.buckets for group in found.groups} == {NO_TEAM: found.buckets}
    run.simulated = True
    session.flush()
    assert _fleet(session, T0 - S, T0 + MIN).simulated is True
    nothing = _fleet(session, T0 - HOUR, T0)
    assert (nothing.device_ns, nothing.runs, nothing.over_time) == (0, 0, [])
    with pytest.raises(Invalid, match="a start before its end"):
        _fleet(session, T0, T0)


def test_a_run_of_no_length_keeps_its_device_time(session: Session) -> None:
    _account(session, _run(session, start_ns=T0, end_ns=T0), unexplained=3)
    found = _fleet(session, T0, T0 + S)
    assert found.buckets["unexplained"] == found.device_ns == 3
    assert _fleet(session, T0 - S, T0).device_ns == 0


def test_more_than_64_bits_of_device_time_are_summed_exactly(session: Session) -> None:
    for number in range(3):
        _account(session, _run(session, f"r{number}"), productive=2**62 + 1, input=number)
    found = _fleet(session, T0 - S, T0 + MIN, AccountBy.FLEET)
    assert found.buckets["productive"] == 3 * (2**62 + 1)
    assert [(group.key, group.device_ns) for group in found.groups] == [("live", 3 * (2**62 + 1) + 3)]
    _check_sums(found)
