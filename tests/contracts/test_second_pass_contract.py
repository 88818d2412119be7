"""Captures that record each rank twice, on both databases: complete with both traces, or with what there is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from capture_steps import NOW, armed, never, request, state_of, store
from records import S, beat, live, reported, started
from sqlalchemy.orm import Session

from tightship_platform import captures, ingest
from tightship_platform.captures import transitions
from tightship_platform.database.engine import Database
from tightship_platform.errors import Conflict, Invalid, NotFound
from tightship_platform.queries.captures import find_trace, get_capture, stored_url
from tightship_platform.wire import CaptureParams

SECOND = "b" * 64
WHY = "recording made steps 2.4 times as long"


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    """Run a1 of workflow train lives on h1 with two ranks."""
    with database.session() as opened:
        ingest.apply_run(opened, started(), now=NOW)
        ingest.apply_heartbeat(opened, beat(live(), time_ns=NOW), now=NOW)
        yield opened


def written(session: Session, *, passes: int = 2, why: str | None = WHY, now: int = NOW + S) -> str:
    key = armed(session, (0, 1))
    report(session, key, passes=passes, why=why, now=now)
    return key


def report(session: Session, key: str, *, passes: int, why: str | None, now: int) -> None:
    captures.report(session, key, reported("written", ranks=(0, 1), passes=passes, passes_reason=why), now=now)


def test_it_is_complete_with_the_second_trace_of_every_rank(session: Session) -> None:
    key = written(session)
    assert not any(store(session, key, rank, now=NOW + 2 * S).completed for rank in (0, 1))
    waiting = get_capture(session, key)
    assert (waiting.state, waiting.passes, waiting.passes_reason) == ("written", 2, WHY)
    assert waiting.latency_s == 2.0, "it ends at the first traces"
    second = {"sha256": SECOND, "recording": 2, "size_bytes": 7, "now": NOW + 9 * S}
    assert not store(session, key, 0, url="traces/0b", **second).completed
    assert not store(session, key, 0, url="traces/0b", **second).completed, "the same file again"
    assert store(session, key, 1, url="traces/1b", **second).completed
    done = get_capture(session, key)
    assert (done.state, done.latency_s) == ("uploaded", 2.0)
    assert [rank.rank for rank in done.ranks] == [0, 1]
    for rank in done.ranks:
        assert rank.second_pass is not None
        assert (rank.second_pass.bytes, rank.second_pass.sha256) == (7, SECOND)
        assert rank.second_pass.url == f"{rank.url}?pass=2"
        assert stored_url(find_trace(session, rank.trace), 2) == f"traces/{rank.rank}b"


def test_a_run_that_ends_between_the_two_gives_what_the_first_one_holds(session: Session) -> None:
    key = written(session)
    for rank in (0, 1):
        store(session, key, rank, now=NOW + 2 * S)
    store(session, key, 0, recording=2, sha256=SECOND, url="traces/0b", now=NOW + 3 * S)
    report(session, key, passes=1, why="recorded once: run ended", now=NOW + 4 * S)
    capture = get_capture(session, key)
    assert (capture.state, capture.passes, capture.passes_reason) == ("uploaded", 1, "recorded once: run ended")
    assert capture.latency_s == 2.0
    sent: list[str] = []
    captures.sweep(session, sent.append, now=NOW + 4 * S)
    assert sent == [key], "no upload sends its analysis off"


def test_an_agent_that_dies_between_the_two(session: Session) -> None:
    key = written(session)
    for rank in (0, 1):
        store(session, key, rank, now=NOW + 2 * S)
    sent: list[str] = []
    captures.sweep(session, never, now=NOW + 2 * S + transitions.UPLOAD_NS)
    result = captures.sweep(session, sent.append, now=NOW + 3 * S + transitions.UPLOAD_NS)
    assert sent == result.enqueued == [key]
    assert state_of(session, key) == ("uploaded", None)
    assert get_capture(session, key).passes_reason == "recorded once: the agent on h1 went silent"


def test_an_agent_that_dies_before_the_first_traces_arrived(session: Session) -> None:
    key = written(session)
    store(session, key, 0, now=NOW + 2 * S)
    assert captures.sweep(session, never, now=NOW + 3 * S + transitions.UPLOAD_NS).failed == [key]


def test_a_second_trace_that_nobody_asked_for(session: Session) -> None:
    key = written(session, passes=1, why=None)
    store(session, key, 0)
    with pytest.raises(Conflict, match="takes no second trace of rank 0"):
        store(session, key, 0, recording=2, sha256=SECOND)
    assert find_trace(session, get_capture(session, key).ranks[0].trace).second_pass is None


def test_a_second_trace_before_the_first(session: Session) -> None:
    key = written(session)
    with pytest.raises(Conflict, match="no first trace of rank 0 yet"):
        store(session, key, 0, recording=2, sha256=SECOND)


@pytest.mark.parametrize("recording", [0, 3, -1])
def test_a_third_trace(session: Session, recording: int) -> None:
    key = written(session)
    with pytest.raises(Invalid):
        store(session, key, 0, recording=recording)
    store(session, key, 0)
    with pytest.raises(NotFound):
        stored_url(find_trace(session, get_capture(session, key).ranks[0].trace), 2)


@pytest.mark.parametrize("passes", [0, 3, -1, True, "2"])
def test_so_many_passes_cannot_be_asked_for_nor_reported(session: Session, passes: int) -> None:
    with pytest.raises(Invalid):
        request(session, params=CaptureParams(passes=passes))
    with pytest.raises(Invalid):
        written(session, passes=passes)


def test_an_attempt_that_is_taken_back_leaves_nothing_of_two_passes(session: Session) -> None:
    key = armed(session, (0, 1))
    captures.report(session, key, reported("requested", reason="the agent was stopped"), now=NOW)
    capture = get_capture(session, key)
    assert (capture.passes, capture.passes_reason, capture.ranks) == (1, None, [])
