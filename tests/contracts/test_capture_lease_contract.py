"""Captures on both databases: agents that go silent, give back, report late or lie; runs that end; files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from capture_steps import NOW, SHA, armed, never, request, state_of, store
from records import MIN, S, beat, ended, lease_of, live, started, told
from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform import captures as capture_flow
from tightship_platform import ingest
from tightship_platform.captures import transitions
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Trace
from tightship_platform.errors import Conflict, Invalid, NotFound
from tightship_platform.queries import captures
from tightship_platform.wire import LEASE_NS, ExpectedRank


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    """A session on a database in which run a1 of workflow train lives on h1 with one rank."""
    with database.session() as opened:
        ingest.apply_run(opened, started(), now=NOW)
        ingest.apply_heartbeat(opened, beat(live(), time_ns=NOW), now=NOW)
        yield opened


# ---- leases ----------------------------------------------------------------------------------------------------------


def test_a_request_that_no_agent_takes_expires(session: Session) -> None:
    key = request(session)
    assert capture_flow.sweep(session, never, now=NOW + transitions.REQUEST_TTL_NS).expired == []
    assert capture_flow.sweep(session, never, now=NOW + transitions.REQUEST_TTL_NS + 1).expired == [key]
    state, reason = state_of(session, key)
    assert state == "expired"
    assert reason == "no agent asked for it within 120 s; is `tightship agent` running on h1?"
    assert capture_flow.lease(session, lease_of("a1"), now=NOW + S) == []


def test_a_silent_agent_loses_its_lease_three_times_at_most(session: Session) -> None:
    key = request(session)
    now = NOW
    for attempt in (1, 2, 3):
        (lease,) = capture_flow.lease(session, lease_of("a1"), now=now)
        assert lease.attempt == attempt
        capture_flow.report(session, key, told("armed", ranks=[0]), now=now)
        assert capture_flow.sweep(session, never, now=now + LEASE_NS).released == []
        now += LEASE_NS + 1
        result = capture_flow.sweep(session, never, now=now)
        if attempt < 3:
            assert result.released == [key]
            assert state_of(session, key) == (
                "requested",
                f"attempt {attempt} of 3: the agent on h1 went silent while armed",
            )
            assert captures.get_capture(session, key).expected == []
        now += 10 * S
    assert state_of(session, key) == ("failed", "gave up after 3 attempts: the agent on h1 went silent while armed")


def test_every_report_renews_the_lease(session: Session) -> None:
    key = armed(session)
    for second in range(0, 120, 25):
        capture_flow.report(session, key, told("recording"), now=NOW + second * S)
        assert capture_flow.sweep(session, never, now=NOW + (second + 24) * S).released == []


def test_a_lease_given_back_is_offered_again_after_a_moment(session: Session) -> None:
    key = request(session)
    capture_flow.lease(session, lease_of("a1"), now=NOW)
    capture_flow.report(session, key, told("requested", reason="no rank is ready yet"), now=NOW)
    assert state_of(session, key) == ("requested", "attempt 1 of 3: no rank is ready yet")
    assert capture_flow.lease(session, lease_of("a1"), now=NOW + S) == []
    (again,) = capture_flow.lease(session, lease_of("a1"), now=NOW + transitions.BACK_OFF_NS)
    assert again.attempt == 2
    capture_flow.report(session, key, told("requested", reason="again"), now=NOW + 3 * S)
    (last,) = capture_flow.lease(session, lease_of("a1", host="h2"), now=NOW + 10 * S)
    assert last.attempt == 3
    capture_flow.report(session, key, told("requested", host="h2", reason="refused"), now=NOW + 11 * S)
    assert state_of(session, key) == ("failed", "gave up after 3 attempts: refused")


def test_what_a_void_attempt_uploaded_does_not_count(session: Session) -> None:
    key = armed(session, (0, 1))
    store(session, key, 0)
    capture_flow.report(session, key, told("requested", reason="rank 1 died"), now=NOW)
    assert captures.get_capture(session, key).ranks == []
    with pytest.raises(Conflict, match=r"is requested \(attempt 1 of 3: rank 1 died\) and takes no trace files"):
        store(session, key, 0)


def test_only_the_holder_may_report(session: Session) -> None:
    key = request(session)
    with pytest.raises(Conflict, match="is not leased; h1 cannot report on it"):
        capture_flow.report(session, key, told("armed", ranks=[0]), now=NOW)
    capture_flow.lease(session, lease_of("a1"), now=NOW)
    with pytest.raises(Conflict, match="is leased by h1; h2 cannot report on it"):
        capture_flow.report(session, key, told("failed", host="h2", reason="ha"), now=NOW)
    with pytest.raises(NotFound, match="No capture named 'nope'; see `tightship captures`"):
        capture_flow.report(session, "nope", told("armed", ranks=[0]), now=NOW)


def test_a_late_report_of_the_last_holder_takes_the_lease_up_again(session: Session) -> None:
    key = armed(session)
    capture_flow.sweep(session, never, now=NOW + LEASE_NS + 1)
    assert state_of(session, key)[0] == "requested"
    capture_flow.report(session, key, told("written", ranks=[0]), now=NOW + LEASE_NS + 2)
    assert store(session, key, now=NOW + LEASE_NS + 3).completed


@pytest.mark.parametrize(
    ("report", "why"),
    [
        (told("uploaded"), "Reported state is 'uploaded'"),
        (told("dancing"), "Reported state is 'dancing'"),
        (told("failed"), "Reason of failed"),
        (told("requested", reason=" \n"), "Reason of requested"),
        (told("armed", ranks=[0, 0]), "each rank once"),
        (told("armed", ranks=[-1]), "Rank is -1"),
        (told("armed", host="a\nb"), "Host is"),
        (told("written"), "the ranks whose files were written"),
    ],
)
def test_a_report_that_cannot_be_is_refused(session: Session, report: Any, why: str) -> None:
    key = request(session)
    capture_flow.lease(session, lease_of("a1"), now=NOW)
    with pytest.raises(Invalid, match=why):
        capture_flow.report(session, key, report, now=NOW)
    session.expire_all()
    assert state_of(session, key)[0] == "leased"


def test_a_forged_pid_is_refused(session: Session) -> None:
    key = request(session)
    capture_flow.lease(session, lease_of("a1"), now=NOW)
    for pid in (0, -1, 2**40):
        report = told("armed")
        report.expected = [ExpectedRank(rank=0, pid=pid)]
        with pytest.raises(Invalid, match="Pid"):
            capture_flow.report(session, key, report, now=NOW)


def test_forged_lease_requests_are_refused(session: Session) -> None:
    for forged in (lease_of("a1", host="x\ny"), lease_of("../a1"), lease_of(*["a1"] * 10_001)):
        with pytest.raises(Invalid):
            capture_flow.lease(session, forged, now=NOW)


# ---- the run ends ----------------------------------------------------------------------------------------------------


def test_captures_of_a_run_that_ends_fail_when_nobody_holds_them(session: Session) -> None:
    held, waiting = armed(session), request(session)
    ingest.apply_run(session, ended(end_ns=NOW), now=NOW)
    assert state_of(session, waiting) == ("failed", "run ended")
    assert state_of(session, held)[0] == "armed"
    assert capture_flow.lease(session, lease_of("a1"), now=NOW) == []
    capture_flow.sweep(session, never, now=NOW + LEASE_NS + 1)
    assert state_of(session, held) == ("failed", "run ended")


def test_the_agent_may_still_finish_after_the_end(session: Session) -> None:
    key = armed(session)
    ingest.apply_run(session, ended(end_ns=NOW), now=NOW)
    capture_flow.report(session, key, told("written"), now=NOW + S)
    assert store(session, key, now=NOW + 2 * S).completed


def test_the_agent_gives_back_after_the_end(session: Session) -> None:
    key = armed(session)
    ingest.apply_run(session, ended(end_ns=NOW), now=NOW)
    capture_flow.report(session, key, told("requested", reason="the process is gone"), now=NOW + S)
    assert state_of(session, key) == ("failed", "run ended")


def test_a_failure_keeps_its_reason_on_one_line(session: Session) -> None:
    key = armed(session)
    capture_flow.report(session, key, told("failed", reason="run ended\n<b>early</b>" + "x" * 900), now=NOW)
    state, reason = state_of(session, key)
    assert (state, reason is not None and reason.startswith("run ended <b>early</b>x")) == ("failed", True)
    assert reason is not None
    assert len(reason) == transitions.REASON_MAX
    capture_flow.report(session, key, told("written", ranks=[0]), now=NOW)
    assert state_of(session, key)[0] == "failed"


# ---- files -----------------------------------------------------------------------------------------------------------


def test_files_that_nobody_expects_are_refused(session: Session) -> None:
    with pytest.raises(NotFound):
        store(session, "nope")
    key = request(session)
    with pytest.raises(Conflict, match="is requested and takes no trace files"):
        store(session, key)
    capture_flow.lease(session, lease_of("a1"), now=NOW)
    with pytest.raises(Conflict, match="is leased and takes no trace files"):
        store(session, key)
    capture_flow.report(session, key, told("armed", ranks=[0, 1]), now=NOW)
    for forged in ({"rank": 7}, {"pid": 999}):
        with pytest.raises(Conflict, match="does not expect a trace of rank"):
            store(session, key, **forged)
    with pytest.raises(Conflict, match="is leased by h1, not by h2"):
        store(session, key, host="h2")
    for bad in ({"sha256": "A" * 64}, {"sha256": "abc"}, {"pid": 0}, {"rank": -1}, {"host": "a\nb"}):
        with pytest.raises(Invalid):
            store(session, key, **bad)
    assert session.scalars(select(Trace)).all() == []


def test_a_file_may_be_replaced_until_the_capture_is_complete(session: Session) -> None:
    key = armed(session, (0, 1))
    first = store(session, key, sha256="b" * 64).trace.id
    assert store(session, key, sha256=SHA, size_bytes=11).trace.id == first
    store(session, key, 1)
    with pytest.raises(Conflict, match="is uploaded and takes no trace files"):
        store(session, key, sha256="c" * 64)
    assert captures.get_capture(session, key).ranks[0].bytes == 11


def test_files_that_never_arrive_fail_the_capture(session: Session) -> None:
    key = armed(session, (0, 1))
    capture_flow.report(session, key, told("written"), now=NOW)
    store(session, key, now=NOW + 5 * MIN)
    assert capture_flow.sweep(session, never, now=NOW + 14 * MIN).failed == []
    assert capture_flow.sweep(session, never, now=NOW + 16 * MIN).failed == [key]
    assert state_of(session, key) == ("failed", "the trace files did not arrive within 10 min")
