"""Runs that an agent saw, on both databases: whose they are, how they end, what they hold, what they cannot have."""

from __future__ import annotations

import pytest
from made_history import account_all
from records import CPU, HOUR, MIN, T0, S, ask, batch, beat, held, live, run_samples, samples, started
from sqlalchemy.orm import Session

from tightship_platform import captures, ingest
from tightship_platform.api.auth import create_token
from tightship_platform.api.user_teams import set_team
from tightship_platform.captures import schedules, stacks
from tightship_platform.database.engine import Database
from tightship_platform.database.reporters import Reporter
from tightship_platform.errors import Conflict, Forbidden, Invalid
from tightship_platform.queries import runs
from tightship_platform.queries.account import fleet_account
from tightship_platform.results.filters import Filters
from tightship_platform.results.run_record import RunRecord
from tightship_platform.samples import rollups
from tightship_platform.vocabulary import Bucket, Scope

NOW = T0 + MIN
START = T0 - T0 % HOUR + HOUR
AT = Filters(since_ns=START - HOUR, until_ns=START + HOUR)
AGENT = Reporter(name="h1-token", host="h1")
MALLORY = Reporter(name="mallory-token")


def seen(**more: object) -> RunRecord:
    return started(**({"user": "alice", "uid": 1000, "seen": True, "command": ["python", "train.py"]} | more))  # type: ignore[arg-type]


def put_tokens(session: Session) -> None:
    create_token(session, AGENT.name, [Scope.INGEST], host="h1")
    create_token(session, MALLORY.name, [Scope.INGEST])


def test_it_starts_with_its_user_and_ends_without_a_guess(database: Database) -> None:
    with database.session() as session:
        put_tokens(session)
        set_team(session, "alice", "vision")
        ingest.apply_heartbeat(session, beat(live(), time_ns=T0), reporter=AGENT, now=T0)  # it came before the record
        ingest.apply_run(session, seen(), reporter=AGENT, now=NOW)
        first = runs.get_run(session, "a1")
        assert (first.source, first.is_seen, first.state, first.reason) == ("seen", True, "running", None)
        assert (first.workflow, first.user, first.steps) == ("train", "alice", None)
        assert first.command == ["python", "train.py"]
        assert ingest.apply_heartbeat(session, beat(live(), time_ns=NOW), reporter=AGENT, now=NOW) == []
        for _ in range(2):
            ingest.apply_run(session, seen(end_ns=T0 + 5 * S), reporter=AGENT, now=NOW)
        last = runs.get_run(session, "a1")
    assert (last.state, last.exit_code, last.end_ns, last.error) == ("unknown", None, T0 + 5 * S, None)
    assert last.reason == "its processes are gone; how they ended only a launcher learns"
    assert last.source == "seen"


@pytest.mark.parametrize("wrong", [{"uid": None}, {"exit_code": 0, "end_ns": T0 + S}, {"error": "E: x"}])
def test_an_agent_tells_no_more_than_it_sees(database: Database, wrong: dict[str, object]) -> None:
    with database.session() as session, pytest.raises(Invalid, match="seen"):
        ingest.apply_run(session, seen(**wrong), now=NOW)


def test_nobody_is_taken_over(database: Database) -> None:
    with database.session() as session:
        put_tokens(session)
        ingest.apply_heartbeat(session, beat(time_ns=T0), reporter=AGENT, now=T0)
        ingest.apply_run(session, started(), now=NOW)
        with pytest.raises(Conflict, match="is reported by a launcher, so a record of an agent that saw it"):
            ingest.apply_run(session, seen(), reporter=AGENT, now=NOW)
        ingest.apply_run(session, seen(run="b2"), reporter=AGENT, now=NOW)
        with pytest.raises(Conflict, match="is reported by an agent that saw it, so a record of a launcher"):
            ingest.apply_run(session, started("b2", user="alice"), reporter=MALLORY, now=NOW)
        with pytest.raises(Conflict, match="number 1000"):
            ingest.apply_run(session, seen(run="b2", uid=1001), reporter=AGENT, now=NOW)
        with pytest.raises(Forbidden):  # the host has an agent, which alone tells what runs there
            ingest.apply_run(session, seen(run="c3"), reporter=MALLORY, now=NOW)
        with pytest.raises(Forbidden):
            ingest.apply_run(session, seen(run="c3", host="h2"), reporter=AGENT, now=NOW)
        assert {run.run for run in runs.list_runs(session)} == {"a1", "b2"}


def test_it_is_neither_captured_nor_asked_for_stacks(database: Database) -> None:
    with database.session() as session:
        ingest.apply_run(session, seen(), now=NOW)
        for asks in (
            lambda: captures.request(session, ask("train"), now=NOW),
            lambda: stacks.ask(session, "a1", by="x"),
        ):
            with pytest.raises(
                Conflict, match=r"was not started by `tightship run`.*; start the job as `tightship run"
            ):
                asks()
        schedules.set_schedule(session, "train", 60 * S)
        assert schedules.request_scheduled_captures(session, now=NOW + HOUR) == []
        # Of a workflow with both, the one that can be captured is meant.
        ingest.apply_run(session, started("b2", start_ns=T0 - S), now=NOW)
        assert captures.request(session, ask("train"), now=NOW).run.key == "b2"


def test_what_it_holds_is_no_more_of_nobody_to_the_nanosecond(database: Database) -> None:
    held_ns = 7 * MIN + 3
    with database.session() as session:
        reported = samples(range(START, START + 10 * MIN, 10 * S), "cpu", util_frac=0.5)
        ingest.apply_batch(session, batch(devices=[CPU], samples=reported), now=START + HOUR)
        rollups.roll_up(session, now=START + HOUR)
        before = fleet_account(session, filters=AT).buckets[Bucket.UNALLOCATED]
        assert before == 10 * MIN
        ingest.apply_run(session, seen(start_ns=START, end_ns=START + held_ns), now=START + HOUR)
        used = run_samples(range(START, START + held_ns, 10 * S), util_frac=0.5)
        allocation = held("a1", START, START + held_ns)
        ingest.apply_batch(session, batch(devices=[CPU], run_samples=used, allocations=[allocation]), now=START + HOUR)
        while rollups.roll_up_dirty(session):
            pass
        account_all(session)
        run = runs.get_run(session, "a1")
        assert run.account is not None
        assert sum(run.account.values()) == run.device_ns == held_ns
        assert {bucket for bucket, ns in run.account.items() if ns} == {Bucket.UNEXPLAINED}  # no steps: never guessed
        after = fleet_account(session, filters=AT)
        assert after.buckets[Bucket.UNALLOCATED] == before - held_ns
        assert sum(after.buckets.values()) == before
