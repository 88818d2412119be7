"""Captures on both databases: their analysis, and many agents, uploads and workers at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from capture_steps import NOW, all_at_once, armed, claimed, never, request, state_of, store, uploaded
from records import S, beat, lease_of, live, started
from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform import captures, ingest
from tightship_platform.captures import Work, transitions
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Trace
from tightship_platform.errors import Conflict, TightshipError


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    """A session on a database in which run a1 of workflow train lives on h1 with one rank."""
    with database.session() as opened:
        ingest.apply_run(opened, started(), now=NOW)
        ingest.apply_heartbeat(opened, beat(live(), time_ns=NOW), now=NOW)
        yield opened


# ---- analysis --------------------------------------------------------------------------------------------------------


def test_an_analysis_that_nobody_begins_is_sent_off_again(session: Session) -> None:
    key = uploaded(session)
    sent: list[str] = []
    captures.sweep(session, sent.append, now=NOW + transitions.ENQUEUE_NS - 1)
    assert sent == []
    for again in range(1, 6):
        now = NOW + again * transitions.ENQUEUE_NS
        assert captures.sweep(session, sent.append, now=now).enqueued == [key]
        assert captures.sweep(session, sent.append, now=now + 1).enqueued == []
    assert sent == [key] * 5
    assert state_of(session, key)[0] == "uploaded"


def test_each_piece_is_held_by_one_worker_at_a_time(session: Session) -> None:
    key = armed(session, (0, 1))
    for rank in (0, 1):
        store(session, key, rank)
    first, second = (captures.claim_work(session, key, now=NOW) for _ in range(2))
    assert (first, second) == (Work(capture=key, rank=0), Work(capture=key, rank=1))
    assert captures.claim_work(session, key, now=NOW + S) is None
    captures.renew_work(session, first, now=NOW + 100 * S)
    captures.sweep(session, never, now=NOW + 200 * S)
    assert captures.claim_work(session, key, now=NOW + 200 * S) == second, "its worker gave no sign of life"
    captures.trace_analyzed(session, first, now=NOW + 201 * S)
    assert captures.claim_work(session, key, now=NOW + 202 * S) is None, "the other one is not done"
    captures.trace_analyzed(session, second, now=NOW + 203 * S)
    assert captures.claim_work(session, key, now=NOW + 204 * S) == Work(capture=key, rank=None)
    assert captures.claim_work(session, key, now=NOW + 205 * S) is None
    captures.analyzed(session, key, now=NOW + 206 * S)
    assert state_of(session, key)[0] == "analyzed"


def test_a_living_analysis_is_never_begun_again(session: Session) -> None:
    key = uploaded(session)
    work = captures.claim_work(session, key, now=NOW)
    assert work is not None
    for second in range(20, 3600, 20):
        captures.renew_work(session, work, now=NOW + second * S)
        captures.sweep(session, never, now=NOW + (second + 10) * S)
        assert captures.claim_work(session, key, now=NOW + (second + 19) * S) is None
    captures.trace_analyzed(session, work, now=NOW + 3600 * S)


def test_a_trace_whose_analysis_dies_three_times_is_given_up(session: Session) -> None:
    key = uploaded(session)
    now = NOW
    sent: list[str] = []
    for _ in range(3):
        assert captures.claim_work(session, key, now=now) == Work(capture=key, rank=0)
        now += transitions.ANALYSIS_NS + 1
        captures.sweep(session, sent.append, now=now)
    assert sent == [key, key, key], "the last message is for joining what there is"
    trace = session.scalars(select(Trace)).one()
    assert trace.error == "the analysis of rank 0 was begun 3 times and never ended; the worker's log says more"
    assert captures.claim_work(session, key, now=now) == Work(capture=key, rank=None)


def test_joining_that_dies_three_times_fails_the_capture(session: Session) -> None:
    key = uploaded(session)
    now = NOW
    sent: list[str] = []
    for _ in range(3):
        claimed(session, key, now=now)
        now += transitions.ANALYSIS_NS + 1
        captures.sweep(session, sent.append, now=now)
    assert sent == [key, key]
    state, reason = state_of(session, key)
    assert state == "failed"
    assert reason == "its analysis was begun 3 times and never ended; the worker's log says more"
    assert captures.claim_work(session, key, now=now) is None


def test_a_store_that_is_away_costs_no_attempt(session: Session) -> None:
    key = uploaded(session)
    now = NOW
    for _ in range(2 * transitions.MAX_ANALYSIS_ATTEMPTS):
        work = captures.claim_work(session, key, now=now)
        assert work is not None and work.rank == 0
        captures.give_work_back(session, work, now=now)
        assert captures.claim_work(session, key, now=now) is None, "not at once"
        now += transitions.ENQUEUE_NS
    assert state_of(session, key)[0] == "uploaded"


def test_what_is_late_changes_nothing(session: Session) -> None:
    key = uploaded(session)
    work = captures.claim_work(session, key, now=NOW)
    assert work is not None
    captures.trace_analyzed(session, work, now=NOW)
    with pytest.raises(Conflict, match="is analyzed already, or not wanted any more"):
        captures.trace_analyzed(session, work, error="late", now=NOW)
    assert session.scalars(select(Trace.error)).one() is None


def test_a_capture_can_be_analyzed_again(session: Session) -> None:
    key = uploaded(session)
    with pytest.raises(Conflict, match="is uploaded"):
        captures.analyze_again(session, key, now=NOW)
    claimed(session, key)
    captures.analyzed(session, key, now=NOW)
    captures.analyze_again(session, key, now=NOW + S)
    assert captures.claim_work(session, key, now=NOW + S) == Work(capture=key, rank=0)
    claimed_again = session.scalars(select(Trace)).one()
    captures.trace_analyzed(session, Work(capture=key, rank=0), now=NOW + S)
    claimed(session, key, now=NOW + S)
    captures.analyzed(session, key, now=NOW + 2 * S)
    claimed_again.removed_ns = NOW
    session.flush()
    with pytest.raises(Conflict, match="No trace file"):
        captures.analyze_again(session, key, now=NOW + 3 * S)


def test_a_broker_that_refuses_does_not_lose_the_analysis(database: Database, session: Session) -> None:
    key = uploaded(session)
    session.commit()

    def refuse(_: str) -> None:
        raise ConnectionError("broker is down")

    later = NOW + transitions.ENQUEUE_NS
    with pytest.raises(ConnectionError), database.session() as other:
        captures.sweep(other, refuse, now=later)
    sent: list[str] = []
    with database.session() as other:
        captures.sweep(other, sent.append, now=later)
    assert sent == [key]


def test_an_analysis_that_fails_says_why(session: Session) -> None:
    key = uploaded(session)
    captures.fail(session, key, "rank 0: not JSON\nat byte 7", now=NOW)
    assert state_of(session, key) == ("failed", "rank 0: not JSON at byte 7")
    captures.fail(session, key, "again", now=NOW)
    assert state_of(session, key) == ("failed", "rank 0: not JSON at byte 7")
    with pytest.raises(Conflict, match="is failed; only an uploaded one can become analyzed"):
        captures.analyzed(session, key, now=NOW)


# ---- many at once ----------------------------------------------------------------------------------------------------


def test_agents_that_ask_at_once_get_a_capture_once(database: Database) -> None:
    keys = [f"r{i}" for i in range(6)]
    with database.session() as session:
        for key in keys:
            ingest.apply_run(session, started(key), now=NOW)
            request(session, key)
            request(session, key)
    got: list[str] = []
    errors: list[BaseException] = []

    def agent(number: int) -> None:
        try:
            for _ in range(4):
                order = keys if number % 2 else keys[::-1]
                with database.session() as session:
                    leases = captures.lease(session, lease_of(*order), now=NOW)
                got.extend(lease.capture for lease in leases)
        except BaseException as error:
            errors.append(error)

    all_at_once([lambda number=number: agent(number) for number in range(5)])
    assert errors == []
    assert len(got) == len(set(got)) == len(keys)


def test_the_last_file_completes_the_capture_once(database: Database) -> None:
    ranks = tuple(range(6))
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        key = armed(session, ranks)
    completed: list[int] = []
    errors: list[BaseException] = []

    def upload(rank: int) -> None:
        try:
            for _ in range(2):
                with database.session() as session:
                    if store(session, key, rank).completed:
                        completed.append(rank)
        except BaseException as error:
            errors.append(error)

    all_at_once([lambda rank=rank: upload(rank) for rank in ranks])
    assert errors == []
    assert len(completed) == 1
    with database.session() as session:
        assert state_of(session, key)[0] == "uploaded"


def test_two_last_files_see_each_other(database: Database) -> None:
    """Neither may think that the other one is still missing."""
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        key = armed(session, (0, 1))
    completed: list[bool] = []

    def upload() -> None:
        with database.session() as session:
            completed.append(store(session, key, 1).completed)

    other = threading.Thread(target=upload)
    with database.session() as session:
        assert not store(session, key, 0).completed
        other.start()
        other.join(0.5)
        assert completed == []  # it waits for this transaction
    other.join()
    assert completed == [True]


def test_workers_that_start_at_once_begin_an_analysis_once(database: Database) -> None:
    with database.session() as session:
        ingest.apply_run(session, started(), now=NOW)
        key = uploaded(session)
    begun: list[bool] = []

    def work() -> None:
        with database.session() as session:
            begun.append(captures.claim_work(session, key, now=NOW) is not None)

    all_at_once([work] * 6)
    assert sorted(begun) == [False] * 5 + [True]


def test_every_refusal_is_an_expected_error_of_one_line(session: Session) -> None:
    for target in ("no\nsuch", "x" * 5000, "", "\x1b[31m"):
        with pytest.raises(TightshipError) as caught:
            request(session, target)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500
