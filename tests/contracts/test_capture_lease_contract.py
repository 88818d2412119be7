"""Captures on both databases: agents that go silent, give back, report late or lie; runs that end; files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from capture_steps import NOW, SHA, armed, never, request, state_of, store
from records import MIN, S, beat, ended, lease_of, live, reported, started
from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform import captures, ingest
from tightship_platform.captures import transitions
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Trace
from tightship_platform.errors import Conflict, Invalid, NotFound
from tightship_platform.queries.captures import get_capture
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
    assert captures.sweep(session, never, now=NOW + transitions.REQUEST_TTL_NS).expired == []
    assert captures.sweep(session, never, now=NOW + transitions.REQUEST_TTL_NS + 1).expired == [key]
    state, reason = state_of(session, key)
    assert state == "expired"
    assert reason == "no agent asked for it within 120 s; is `tightship agent` running on h1?"
    assert captures.lease(session, lease_of("a1"), now=NOW + S) == []


def test_a_silent_agent_loses_its_lease_three_times_at_most(session: Session) -> None:
    key = request(session)
    now = NOW
    for attempt in (1, 2, 3):
        (lease,) = captures.lease(session, lease_of("a1"), now=now)
        assert lease.attempt == attempt
        captures.report(session, key, reported("armed", ranks=[0]), now=now)
        assert captures.sweep(session, never, now=now + LEASE_NS).released == []
        now += LEASE_NS + 1
        result = captures.sweep(session, never, now=now)
        if attempt < 3:
            assert result.released == [key]
            assert state_of(session, key) == (
                "requested",
                f"attempt {attempt} of 3: the agent on h1 went silent while armed",
            )
            assert get_capture(session, key).expected == []
        now += 10 * S
    assert state_of(session, key) == ("failed", "gave up after 3 attempts: the agent on h1 went silent while armed")


def test_every_report_renews_the_lease(session: Session) -> None:
    key = armed(session)
    for second in range(0, 120, 25):
        captures.report(session, key, reported("recording"), now=NOW + second * S)
        assert captures.sweep(session, never, now=NOW + (second + 24) * S).released == []


def test_a_lease_given_back_is_offered_again_after_a_moment(session: Session) -> None:
    key = request(session)
    captures.lease(session, lease_of("a1"), now=NOW)
    captures.report(session, key, reported("requested", reason="no rank is ready yet"), now=NOW)
    assert state_of(session, key) == ("requested", "attempt 1 of 3: no rank is ready yet")
    assert captures.lease(session, lease_of("a1"), now=NOW + S) == []
    (again,) = captures.lease(session, lease_of("a1"), now=NOW + transitions.BACK_OFF_NS)
    assert again.attempt == 2
    captures.report(session, key, reported("requested", reason="again"), now=NOW + 3 * S)
    (last,) = captures.lease(session, lease_of("a1"), now=NOW + 10 * S)
    assert last.attempt == 3
    captures.report(session, key, reported("requested", reason="refused"), now=NOW + 11 * S)
    assert state_of(session, key) == ("failed", "gave up after 3 attempts: refused")


def test_what_a_void_attempt_uploaded_does_not_count(session: Session) -> None:
    key = armed(session, (0, 1))
    store(session, key, 0)
    captures.report(session, key, reported("requested", reason="rank 1 died"), now=NOW)
    assert get_capture(session, key).ranks == []
    with pytest.raises(Conflict, match=r"is requested \(attempt 1 of 3: rank 1 died\) and takes no trace files"):
        store(session, key, 0)


def test_only_the_holder_may_report(session: Session) -> None:
    key = request(session)
    with pytest.raises(Conflict, match="is not leased; h1 cannot report on it"):
        captures.report(session, key, reported("armed", ranks=[0]), now=NOW)
    captures.lease(session, lease_of("a1"), now=NOW)
    with pytest.raises(Conflict, match="is leased by h1; h2 cannot report on it"):
        captures.report(session, key, reported("failed", host="h2", reason="ha"), now=NOW)
    with pytest.raises(NotFound, match="No capture named 'nope'; see `tightship captures`"):
        captures.report(session, "nope", reported("armed", ranks=[0]), now=NOW)


def test_a_late_report_of_the_last_holder_takes_the_lease_up_again(session: Session) -> None:
    key = armed(session)
    captures.sweep(session, never, now=NOW + LEASE_NS + 1)
    assert state_of(session, key)[0] == "requested"
    captures.report(session, key, reported("written", ranks=[0]), now=NOW + LEASE_NS + 2)
    assert store(session, key, now=NOW + LEASE_NS + 3).completed


@pytest.mark.parametrize(
    ("report", "why"),
    [
        (reported("uploaded"), "Reported state is 'uploaded'"),
        (reported("dancing"), "Reported state is 'dancing'"),
        (reported("failed"), "Reason of failed"),
        (reported("requested", reason=" \n"), "Reason of requested"),
        (reported("armed", ranks=[0, 0]), "each rank once"),
        (reported("armed", ranks=[-1]), "Rank is -1"),
        (reported("armed", host="a\nb"), "Host is"),
        (reported("written"), "the ranks whose files were written"),
    ],
)
def test_a_report_that_cannot_be_is_refused(session: Session, report: Any, why: str) -> None:
    key = request(session)
    captures.lease(session, lease_of("a1"), now=NOW)
    with pytest.raises(Invalid, match=why):
        captures.report(session, key, report, now=NOW)
    session.expire_all()
    assert state_of(session, key)[0] == "leased"


def test_a_forged_pid_is_refused(session: Session) -> None:
    key = request(session)
    captures.lease(session, lease_of("a1"), now=NOW)
    for pid in (0, -1, 2**40):
        report = reported("armed")
        report.expected = [ExpectedRank(rank=0, pid=pid)]
        with pytest.raises(Invalid, match="Pid"):
            captures.report(session, key, report, now=NOW)


def test_forged_lease_requests_are_refused(session: Session) -> None:
    for forged in (lease_of("a1", host="x\ny"), lease_of("../a1"), lease_of(*["a1"] * 10_001)):
        with pytest.raises(Invalid):
            captures.lease(session, forged, now=NOW)


# ---- the run ends ----------------------------------------------------------------------------------------------------


def test_captures_of_a_run_that_ends_fail_when_nobody_holds_them(session: Session) -> None:
    held, waiting = armed(session), request(session)
    ingest.apply_run(session, ended(end_ns=NOW), now=NOW)
    assert state_of(session, waiting) == ("failed", "run ended")
    assert state_of(session, held)[0] == "armed"
    assert captures.lease(session, lease_of("a1"), now=NOW) == []
    captures.sweep(session, never, now=NOW + LEASE_NS + 1)
    assert state_of(session, held) == ("failed", "run ended")


def test_the_agent_may_still_finish_after_the_end(session: Session) -> None:
    key = armed(session)
    ingest.apply_run(session, ended(end_ns=NOW), now=NOW)
    captures.report(session, key, reported("written"), now=NOW + S)
    assert store(session, key, now=NOW + 2 * S).completed


def test_the_agent_gives_back_after_the_end(session: Session) -> None:
    key = armed(session)
    ingest.apply_run(session, ended(end_ns=NOW), now=NOW)
    captures.report(session, key, reported("requested", reason="the process is gone"), now=NOW + S)
    assert state_of(session, key) == ("failed", "run ended")


def test_a_failure_keeps_its_reason_on_one_line(session: Session) -> None:
    key = armed(session)
    captures.report(session, key, reported("failed", reason="run ended\n<b>early</b>" + "x" * 900), now=NOW)
    state, reason = state_of(session, key)
    assert (state, reason is not None and reason.startswith("run ended <b>early</b>x")) == ("failed", True)
    assert reason is not None
    assert len(reason) == transitions.REASON_MAX
    captures.report(session, key, reported("written", ranks=[0]), now=NOW)
    assert state_of(session, key)[0] == "failed"


# ---- files -----------------------------------------------------------------------------------------------------------


def test_files_that_nobody_expects_are_refused(session: Session) -> None:
    with pytest.raises(NotFound):
        store(session, "nope")
    key = request(session)
    with pytest.raises(Conflict, match="is requested and takes no trace files"):
        store(session, key)
    captures.lease(session, lease_of("a1"), now=NOW)
    with pytest.raises(Conflict, match="is leased and takes no trace files"):
        store(session, key)
    captures.report(session, key, reported("armed", ranks=[0, 1]), now=NOW)
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
    assert get_capture(session, key).ranks[0].bytes == 11


def test_files_that_never_arrive_fail_the_capture(session: Session) -> None:
    key = armed(session, (0, 1))
    captures.report(session, key, reported("written"), now=NOW)
    store(session, key, now=NOW + 5 * MIN)
    assert captures.sweep(session, never, now=NOW + 14 * MIN).failed == []
    assert captures.sweep(session, never, now=NOW + 16 * MIN).failed == [key]
    assert state_of(session, key) == ("failed", "the trace files did not arrive within 10 min")
