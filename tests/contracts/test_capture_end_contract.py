"""Captures on both databases: their analysis, and many agents, uploads and workers at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from capture_steps import NOW, all_at_once, armed, never, request, state_of, store, uploaded
from records import S, beat, lease_of, live, started
from sqlalchemy.orm import Session

from tightship_platform import captures, ingest
from tightship_platform.captures import transitions
from tightship_platform.database.engine import Database
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


def test_an_analysis_is_begun_by_one_worker_at_a_time(session: Session) -> None:
    key = uploaded(session)
    assert captures.start_analysis(session, key, now=NOW)
    assert not captures.start_analysis(session, key, now=NOW + S)
    captures.renew_analysis(session, key, now=NOW + 100 * S)
    captures.sweep(session, never, now=NOW + 200 * S)
    assert not captures.start_analysis(session, key, now=NOW + 200 * S)


def test_an_analysis_that_dies_is_begun_three_times(session: Session) -> None:
    key = uploaded(session)
    now = NOW
    sent: list[str] = []
    for _ in range(3):
        assert captures.start_analysis(session, key, now=now)
        now += transitions.ANALYSIS_NS + 1
        captures.sweep(session, sent.append, now=now)
    assert sent == [key, key]
    state, reason = state_of(session, key)
    assert state == "failed"
    assert reason == "its analysis was begun 3 times and never ended; the worker's log says more"
    assert not captures.start_analysis(session, key, now=now)


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
                    leases = captures.lease(session, lease_of(*order, host=f"h{number}"), now=NOW)
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
            begun.append(captures.start_analysis(session, key, now=NOW))

    all_at_once([work] * 6)
    assert sorted(begun) == [False] * 5 + [True]


def test_every_refusal_is_an_expected_error_of_one_line(session: Session) -> None:
    for target in ("no\nsuch", "x" * 5000, "", "\x1b[31m"):
        with pytest.raises(TightshipError) as caught:
            request(session, target)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500
