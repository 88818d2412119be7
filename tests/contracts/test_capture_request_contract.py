"""Captures on both databases: the straight way from request to analysis, what may be asked for, schedules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from capture_steps import NOW, SHA, armed, claimed, never, request, state_of, store, uploaded
from records import MIN, T0, S, beat, ended, lease_of, live, reported, started
from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform import captures, ingest
from tightship_platform.captures.requests import MAX_WAITING
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Capture, Trace
from tightship_platform.errors import Conflict, Invalid, NotFound
from tightship_platform.queries.audit import list_audit
from tightship_platform.queries.captures import get_capture
from tightship_platform.wire import LEASE_NS, CaptureParams


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    """A session on a database in which run a1 of workflow train lives on h1 with one rank."""
    with database.session() as opened:
        ingest.apply_run(opened, started(), now=NOW)
        ingest.apply_heartbeat(opened, beat(live(), time_ns=NOW), now=NOW)
        yield opened


# ---- the straight way ------------------------------------------------------------------------------------------------


def test_from_request_to_analysis(session: Session) -> None:
    key = request(session, "train", requested_by="dashboard", params=CaptureParams(stacks=False))
    assert state_of(session, key) == ("requested", None)
    (lease,) = captures.lease(session, lease_of("zz", "a1"), now=NOW + S)
    assert (lease.capture, lease.run, lease.attempt) == (key, "a1", 1)
    assert lease.params == CaptureParams(stacks=False)
    assert lease.lease_expires_ns == NOW + S + LEASE_NS
    assert captures.lease(session, lease_of("a1"), now=NOW + S) == []
    captures.report(session, key, reported("armed", ranks=[0, 1]), now=NOW + 2 * S)
    captures.report(session, key, reported("recording"), now=NOW + 3 * S)
    captures.report(session, key, reported("written"), now=NOW + 4 * S)
    assert not store(session, key, 1, now=NOW + 5 * S).completed
    assert state_of(session, key) == ("written", None)
    assert store(session, key, 0, now=NOW + 6 * S).completed
    assert state_of(session, key) == ("uploaded", None)
    claimed(session, key, now=NOW + 7 * S)
    captures.analyzed(session, key, now=NOW + 8 * S)
    capture = get_capture(session, key)
    states = ["requested", "leased", "armed", "recording", "written", "uploaded", "analyzed"]
    assert capture.stages == {
        state: NOW + second * S for state, second in zip(states, (0, 1, 2, 3, 4, 6, 8), strict=True)
    }
    assert capture.state == "analyzed"
    assert capture.latency_s == 6.0
    assert capture.requested_by == "dashboard"
    assert [vars(rank) for rank in capture.expected] == [{"rank": 0, "pid": 100}, {"rank": 1, "pid": 101}]
    assert [(rank.rank, rank.pid, rank.bytes, rank.sha256) for rank in capture.ranks] == [
        (0, 100, 10, SHA),
        (1, 101, 10, SHA),
    ]
    assert capture.ranks[0].url == f"/api/v1/traces/{capture.ranks[0].trace}/file"


def test_files_may_come_before_the_agent_says_written(session: Session) -> None:
    key = uploaded(session)
    captures.report(session, key, reported("written", ranks=[0]), now=NOW + S)
    assert state_of(session, key) == ("uploaded", None)


def test_everything_may_be_said_twice(session: Session) -> None:
    key = armed(session, (0, 1))
    for state in ("armed", "recording", "recording", "written", "recording", "armed"):
        captures.report(session, key, reported(state, ranks=[0, 1]), now=NOW + S)
    assert state_of(session, key) == ("written", None)
    first, again = store(session, key), store(session, key)
    assert (first.trace.id, first.completed) == (again.trace.id, again.completed)
    assert store(session, key, 1).completed
    assert not store(session, key, 1).completed
    claimed(session, key)
    for _ in range(2):
        captures.analyzed(session, key, now=NOW)
    assert not store(session, key).completed
    assert len(session.scalars(select(Trace)).all()) == 2
    assert state_of(session, key) == ("analyzed", None)


# ---- asking ----------------------------------------------------------------------------------------------------------


def test_a_workflow_means_its_newest_live_run(session: Session) -> None:
    ingest.apply_run(session, started("b2", start_ns=T0 + S), now=NOW)
    ingest.apply_run(session, ended("c3", start_ns=T0 + 2 * S, end_ns=T0 + 3 * S), now=NOW)
    assert get_capture(session, request(session, "train")).run == "b2"


def test_an_unknown_target_names_what_runs(session: Session) -> None:
    ingest.apply_run(session, started("b2", "<b>other</b>", start_ns=T0 + S), now=NOW)
    with pytest.raises(NotFound) as caught:
        request(session, "trian")
    assert str(caught.value) == "No run or workflow named 'trian'; running now: '<b>other</b>', 'train'"
    ingest.apply_run(session, ended(end_ns=T0 + S), now=NOW)
    ingest.apply_run(session, ended("b2", "<b>other</b>", start_ns=T0 + S, end_ns=T0 + S), now=NOW)
    with pytest.raises(NotFound, match="nothing runs now; start a job with `tightship run -- CMD`"):
        request(session, "trian")


def test_a_run_that_does_not_run_is_a_conflict(session: Session) -> None:
    ingest.apply_run(session, ended(end_ns=T0 + S), now=NOW)
    with pytest.raises(Conflict, match=r"Run a1 of 'train' is finished; only a running run can be captured"):
        request(session, "a1")
    with pytest.raises(Conflict, match=r"Workflow 'train' has no live run; its newest, a1, is finished"):
        request(session, "train")


@pytest.mark.parametrize(
    "params",
    [
        CaptureParams(duration_ns=9_999_999),
        CaptureParams(duration_ns=60_000_000_001),
        CaptureParams(duration_ns=-1),
        CaptureParams(duration_ns=None),
        CaptureParams(duration_ns=S, iterations=3),
        CaptureParams(duration_ns=None, iterations=0),
        CaptureParams(duration_ns=None, iterations=10_001),
        CaptureParams(duration_ns=1.5),  # type: ignore[arg-type]
        CaptureParams(duration_ns=True),
        CaptureParams(stacks="yes"),  # type: ignore[arg-type]
    ],
)
def test_parameters_out_of_range_are_refused(session: Session, params: CaptureParams) -> None:
    with pytest.raises(Invalid, match="Capture"):
        request(session, params=params)
    assert session.scalars(select(Capture)).all() == []


def test_iterations_are_accepted(session: Session) -> None:
    key = request(session, params=CaptureParams(duration_ns=None, iterations=5))
    assert get_capture(session, key).params.iterations == 5


def test_a_second_request_waits_and_says_for_what(session: Session) -> None:
    first, second = request(session), request(session)
    assert state_of(session, second) == ("requested", f"waits for capture {first}")
    assert [lease.capture for lease in captures.lease(session, lease_of("a1"), now=NOW)] == [first]
    assert captures.lease(session, lease_of("a1"), now=NOW) == []
    third = request(session)
    assert state_of(session, third) == ("requested", f"waits for capture {first}")
    # It does not expire while it waits, however long that is.
    for later in range(0, 400, 20):
        captures.report(session, first, reported("recording", ranks=[0]), now=NOW + later * S)
        captures.sweep(session, never, now=NOW + later * S)
    assert state_of(session, second)[0] == state_of(session, third)[0] == "requested"
    store(session, first, now=NOW + 400 * S)
    assert [lease.capture for lease in captures.lease(session, lease_of("a1"), now=NOW + 400 * S)] == [second]
    assert state_of(session, second) == ("leased", None)
    assert state_of(session, third) == ("requested", f"waits for capture {second}")


def test_the_queue_of_a_run_is_bounded(session: Session) -> None:
    for _ in range(MAX_WAITING):
        request(session)
    with pytest.raises(Conflict, match=f"{MAX_WAITING} captures of run a1 wait already"):
        request(session)


# ---- schedules -------------------------------------------------------------------------------------------------------


def test_a_schedule_asks_again_and_again(session: Session) -> None:
    captures.set_schedule(session, "train", 10 * MIN, CaptureParams(duration_ns=2 * S))
    assert captures.request_scheduled_captures(session, now=T0 + 59 * S) == []
    (key,) = captures.request_scheduled_captures(session, now=T0 + 60 * S)
    (entry,) = list_audit(session, actor="schedule")
    assert (entry.action, entry.target) == ("capture.request", key)
    capture = get_capture(session, key)
    assert (capture.requested_by, capture.params.duration_ns) == ("schedule", 2 * S)
    assert captures.request_scheduled_captures(session, now=T0 + 20 * MIN) == []  # the last one is under way
    captures.fail(session, key, "x", now=T0 + 60 * S)
    assert captures.request_scheduled_captures(session, now=T0 + 11 * MIN - 1) == []
    assert len(captures.request_scheduled_captures(session, now=T0 + 11 * MIN)) == 1
    captures.set_schedule(session, "train", None)
    assert captures.request_scheduled_captures(session, now=T0 + 60 * MIN) == []


def test_a_run_with_a_full_queue_does_not_keep_others_from_their_schedule(session: Session) -> None:
    ingest.apply_run(session, started("b2"), now=NOW)
    for _ in range(MAX_WAITING):
        request(session)
    captures.set_schedule(session, "train", 10 * MIN)
    (key,) = captures.request_scheduled_captures(session, now=T0 + 60 * S)
    assert get_capture(session, key).run == "b2"


def test_a_schedule_that_cannot_be_is_refused(session: Session) -> None:
    with pytest.raises(NotFound, match="No workflow named 'nope'"):
        captures.set_schedule(session, "nope", 10 * MIN)
    for every_ns in (59 * S, 0, -1, 31 * 24 * 60 * MIN, 1e12):
        with pytest.raises(Invalid, match="Schedule"):
            captures.set_schedule(session, "train", every_ns)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="Capture duration"):
        captures.set_schedule(session, "train", 10 * MIN, CaptureParams(duration_ns=1))
