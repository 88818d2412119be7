"""Whose hosts, runs and captures are, and what others may do with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from records import T0, S, ask, batch, beat, ended, lease_of, live, reported, samples, started
from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform import captures, ingest
from tightship_platform.api.auth import create_token, revoke_token
from tightship_platform.api.user_teams import list_teams, set_team
from tightship_platform.database import reporters
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Host, Run
from tightship_platform.database.reporters import Reporter
from tightship_platform.errors import Conflict, Forbidden, Invalid, NotFound
from tightship_platform.queries import runs
from tightship_platform.vocabulary import Scope

NOW = T0 + 60 * S
AGENTS = Reporter(name="agents")
ALICE = Reporter(name="alice-token")
MALLORY = Reporter(name="mallory-token")
ANNOUNCED = started(user="alice", command=["python", "train.py"])


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with database.session() as opened:
        for name in (AGENTS.name, ALICE.name, MALLORY.name):
            create_token(opened, name, [Scope.INGEST])
        yield opened


@pytest.mark.parametrize(
    ("forged", "why"),
    [
        (ended(end_ns=NOW, exit_code=1, host="evil", user="alice"), "is of host 'h1', so a record from 'evil'"),
        (ended(end_ns=NOW, exit_code=1, user="mallory"), "is of user 'alice', so a record of 'mallory'"),
    ],
)
def test_a_stranger_neither_changes_nor_ends_a_run(session: Session, forged: object, why: str) -> None:
    ingest.apply_run(session, ANNOUNCED, reporter=ALICE, now=NOW)
    before = runs.get_run(session, "a1")
    with pytest.raises(Conflict, match=why):
        ingest.apply_run(session, replace(forged, workflow="evil", error="forged"), reporter=MALLORY, now=NOW)  # type: ignore[type-var]
    assert runs.get_run(session, "a1") == before
    ingest.apply_run(session, ended(end_ns=NOW, user="alice"), reporter=ALICE, now=NOW)
    assert runs.get_run(session, "a1").state == "finished"


def test_a_token_of_a_user_reports_that_users_runs_whatever_the_record_says(session: Session) -> None:
    mallory = replace(MALLORY, user="mallory")
    ingest.apply_run(session, ANNOUNCED, reporter=replace(ALICE, user="alice"), now=NOW)
    with pytest.raises(Conflict, match="is of user 'alice'"):
        ingest.apply_run(session, ended(end_ns=NOW, user="alice"), reporter=mallory, now=NOW)
    ingest.apply_run(session, started("b2", user="alice"), reporter=mallory, now=NOW)
    assert runs.get_run(session, "b2").user == "mallory"


def test_a_run_belongs_to_the_team_of_the_token_that_first_reported_it(session: Session) -> None:
    ingest.apply_run(session, replace(ANNOUNCED, team="blue"), reporter=replace(ALICE, team="red"), now=NOW)
    assert session.scalar(select(Run.team)) == "red"
    with pytest.raises(Conflict, match="is of team 'red', so a record from team 'blue'"):
        ingest.apply_run(session, ANNOUNCED, reporter=replace(MALLORY, team="blue"), now=NOW)
    ingest.apply_run(session, ANNOUNCED, reporter=AGENTS, now=NOW)
    assert session.scalar(select(Run.team)) == "red"


def test_what_the_agent_says_of_the_user_counts_and_only_the_agent_may_say_it(session: Session) -> None:
    ingest.apply_heartbeat(session, beat(time_ns=NOW), reporter=AGENTS, now=NOW)
    ingest.apply_run(session, replace(ANNOUNCED, user="root"), reporter=ALICE, now=NOW)  # as a container calls her
    with pytest.raises(Forbidden, match="Host 'h1' is reported by the token 'agents', so 'mallory-token' cannot"):
        ingest.apply_run(session, replace(ANNOUNCED, uid=7, user="mallory"), reporter=MALLORY, now=NOW)
    ingest.apply_run(session, replace(ANNOUNCED, uid=1000, user="alice"), reporter=AGENTS, now=NOW)
    assert runs.get_run(session, "a1").user == "alice"
    with pytest.raises(Conflict, match="is of the user with number 1000, so a record of number 1001"):
        ingest.apply_run(session, replace(ANNOUNCED, uid=1001, user=None), reporter=AGENTS, now=NOW)


def test_the_captures_of_a_run_go_to_its_host_alone(session: Session) -> None:
    ingest.apply_run(session, ANNOUNCED, reporter=ALICE, now=NOW)
    ingest.apply_run(session, started("b2", host="evil"), reporter=MALLORY, now=NOW)
    captures.request(session, ask("a1"), now=NOW)
    with pytest.raises(Conflict, match="Run a1 is of 'h1'; 'evil' cannot take its captures"):
        captures.lease(session, lease_of("a1", "b2", host="evil"), reporter=MALLORY, now=NOW)
    own = captures.request(session, ask("b2"), now=NOW).key
    leased = captures.lease(session, lease_of("a1", "b2", host="evil"), reporter=MALLORY, now=NOW)
    assert [lease.capture for lease in leased] == [own]
    assert len(captures.lease(session, lease_of("a1"), reporter=AGENTS, now=NOW)) == 1


def test_a_host_belongs_to_the_token_that_first_reported_it_as_long_as_that_is_active(session: Session) -> None:
    ingest.apply_heartbeat(session, beat(live(), time_ns=NOW), now=NOW)  # an administrator: nothing becomes theirs
    ingest.apply_heartbeat(session, beat(live(), time_ns=NOW), reporter=AGENTS, now=NOW)
    key = captures.request(session, ask("a1"), now=NOW).key
    refused = "Host 'h1' is reported by the token 'agents', so 'mallory-token' cannot report for it"
    with pytest.raises(Forbidden, match=refused):
        ingest.apply_heartbeat(session, beat(time_ns=NOW), reporter=MALLORY, now=NOW)
    with pytest.raises(Forbidden, match=refused):
        ingest.apply_batch(session, batch(samples=samples([T0])), reporter=MALLORY, now=NOW)
    with pytest.raises(Forbidden, match=refused):
        captures.lease(session, lease_of("a1"), reporter=MALLORY, now=NOW)
    captures.lease(session, lease_of("a1"), reporter=AGENTS, now=NOW)
    with pytest.raises(Forbidden, match=refused):
        captures.report(session, key, reported("armed", ranks=[0]), reporter=MALLORY, now=NOW)
    captures.report(session, key, reported("armed", ranks=[0]), reporter=AGENTS, now=NOW)
    with pytest.raises(Forbidden, match=refused):
        captures.check_trace(session, key, rank=0, pid=100, host="h1", sha256="a" * 64, reporter=MALLORY)
    ingest.apply_heartbeat(session, beat(live(), time_ns=NOW), now=NOW)
    assert session.scalar(select(Host.reported_by)) == AGENTS.name
    revoke_token(session, AGENTS.name)
    ingest.apply_heartbeat(session, beat(time_ns=NOW), reporter=MALLORY, now=NOW)
    assert session.scalar(select(Host.reported_by)) == MALLORY.name


def test_a_token_of_a_host_reports_for_it_and_for_no_other(session: Session) -> None:
    own = Reporter(name="h1-agent", host="h1")
    create_token(session, own.name, [Scope.INGEST], host="h1")
    with pytest.raises(Forbidden, match="Host 'h1' is reported by the token 'h1-agent'"):
        ingest.apply_heartbeat(session, beat(time_ns=NOW), reporter=MALLORY, now=NOW)
    ingest.apply_heartbeat(session, beat(time_ns=NOW), reporter=own, now=NOW)
    for refused in (beat(time_ns=NOW, host="h2"), beat(live("z9"), time_ns=NOW, host="h2")):
        with pytest.raises(Forbidden, match="Token 'h1-agent' is of host 'h1' and cannot report for 'h2'"):
            ingest.apply_heartbeat(session, refused, reporter=own, now=NOW)
    with pytest.raises(Conflict, match="is of host 'h2'; the token 'h1-agent' reports for 'h1' only"):
        ingest.apply_run(session, started(host="h2"), reporter=own, now=NOW)
    assert list(session.scalars(select(Host.name))) == ["h1"]


def test_a_token_invents_only_so_many_hosts(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporters, "HOSTS_PER_TOKEN", 3)
    for number in range(3):
        ingest.apply_heartbeat(session, beat(time_ns=NOW, host=f"h{number}"), reporter=MALLORY, now=NOW)
    for refused in (beat(time_ns=NOW, host="h3"), beat(time_ns=NOW, host="h4")):
        with pytest.raises(
            Forbidden, match="has reported 3 hosts, as many as one token may; give further hosts tokens"
        ):
            ingest.apply_heartbeat(session, refused, reporter=MALLORY, now=NOW)
    ingest.apply_heartbeat(session, beat(time_ns=NOW, host="h2"), reporter=MALLORY, now=NOW)
    ingest.apply_heartbeat(session, beat(time_ns=NOW, host="h3"), reporter=AGENTS, now=NOW)
    assert len(session.scalars(select(Host.id)).all()) == 4


def test_an_administrators_table_gives_users_a_team_and_no_record_does(session: Session) -> None:
    set_team(session, "alice", "red")
    ingest.apply_run(session, replace(ANNOUNCED, team="claimed"), reporter=MALLORY, now=NOW)
    assert session.scalar(select(Run.team)) is None  # only the record says that it is alice's
    ingest.apply_run(session, replace(ANNOUNCED, uid=1000), reporter=AGENTS, now=NOW)
    assert session.scalar(select(Run.team)) == "red"
    ingest.apply_run(session, started("b2", user="x"), reporter=replace(ALICE, user="alice"), now=NOW)
    ingest.apply_run(session, started("c3"), reporter=replace(ALICE, user="alice", team="blue"), now=NOW)
    assert session.scalars(select(Run.team).order_by(Run.key)).all() == ["red", "red", "blue"]
    assert [(row.user, row.team) for row in list_teams(session)] == [("alice", "red")]
    set_team(session, "alice", "green")
    set_team(session, "alice", None)
    assert list_teams(session) == []
    with pytest.raises(NotFound, match="No user of a team named 'alice'"):
        set_team(session, "alice", None)
    with pytest.raises(Invalid, match="Team is"):
        set_team(session, "alice", "a\nb")
