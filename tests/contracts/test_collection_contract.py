"""*Is the collection healthy?*: what each host delivers, its clock, its gaps; what waits, failed and was refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.orm import Session

from tightship_platform.database.audit import audit
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Capture, Device, DirtyHour, Host, HostSample, RolledUp, Run, Workflow
from tightship_platform.database.teams import see_team
from tightship_platform.queries.collection import read_collection
from tightship_platform.results.collection import HostDelivery
from tightship_platform.units import NS_PER_S, now_ns

NOW = now_ns()
EMPTY = {"spool_entries": 0, "spool_bytes": 0, "spool_dropped": 0, "rows_too_old": 0, "rows_refused": 0}


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with database.session() as opened:
        yield opened
        opened.rollback()


def put_host(session: Session, name: str, samples: range, *, heard_s: int = 1, **info: Any) -> Host:
    """A host whose clock took samples so many seconds before now."""
    host = Host(
        name=name,
        first_seen_ns=NOW - 10**15,
        last_seen_ns=NOW - heard_s * NS_PER_S,
        agent_version="1",
        info=EMPTY | info,
        sources=[],
    )
    session.add(host)
    session.flush()
    session.add_all(HostSample(time_ns=NOW - s * NS_PER_S, host_id=host.id) for s in samples)
    session.flush()
    return host


def of(session: Session, name: str) -> HostDelivery:
    return next(one for one in read_collection(session, now=NOW).deliveries if one.host == name)


def test_nothing_yet(session: Session) -> None:
    found = read_collection(session, now=NOW)
    assert (found.hosts, found.silent, found.deliveries, found.rolled_up_ns) == (0, 0, [], None)
    assert (found.waiting, found.waiting_since_ns, found.failed, found.failure) == (0, None, 0, None)


def test_a_host_that_delivers_and_one_that_is_silent(session: Session) -> None:
    put_host(session, "well", range(2, 300, 5))
    put_host(session, "silent", range(600, 900, 5), heard_s=600)
    put_host(session, "bare", range(0), spool_entries=7, spool_bytes=9, spool_dropped=2, rows_too_old=3)
    found = read_collection(session, now=NOW)
    assert (found.hosts, found.silent) == (3, 1)
    assert [one.host for one in found.deliveries] == ["silent", "bare", "well"], "first who needs a look"
    well, silent, bare = (of(session, name) for name in ("well", "silent", "bare"))
    assert (well.alive, well.newest_ns, well.gap_ns, well.ahead_ns) == (True, NOW - 2 * NS_PER_S, 5 * NS_PER_S, 0)
    assert (silent.alive, silent.ahead_ns) == (False, None)
    assert (bare.newest_ns, bare.gap_ns, bare.ahead_ns) == (None, None, None)
    assert (bare.spool_entries, bare.spool_bytes, bare.dropped, bare.not_stored) == (7, 9, 2, 3)


def test_a_clock_that_is_off_shows_by_the_samples_that_it_dates(session: Session) -> None:
    put_host(session, "ahead", range(-3600, -3300, 5))
    put_host(session, "behind", range(1800, 2100, 5))
    put_host(session, "catches up", range(1800, 2100, 5), spool_entries=300)
    assert of(session, "ahead").ahead_ns == 3601 * NS_PER_S
    assert of(session, "behind").ahead_ns == -1799 * NS_PER_S
    assert of(session, "catches up").ahead_ns is None, "what is old waits in its spool"


def test_a_gap_is_the_longest_time_without_a_sample(session: Session) -> None:
    host = put_host(session, "gaps", range(0, 200, 5))
    session.add_all(HostSample(time_ns=NOW - s * NS_PER_S, host_id=host.id) for s in (400, 590, 5000))
    session.flush()
    assert of(session, "gaps").gap_ns == 205 * NS_PER_S


@pytest.mark.parametrize("nonsense", ["7", -1, 1.5, True, None])
def test_what_an_agent_says_that_is_no_figure_counts_as_nothing(session: Session, nonsense: Any) -> None:
    host = put_host(session, "odd", range(10), spool_entries=nonsense, rows_refused=nonsense)
    host.sources = [{"name": "dcgm", "state": "error", "detail": "gone"}, {"name": "nvml", "state": "ok"}, "x"]
    session.flush()
    found = of(session, "odd")
    assert (found.spool_entries, found.not_stored, found.faults) == (None, None, ["dcgm: gone"])


def test_what_waits_failed_and_was_refused_is_counted_for_its_team(session: Session) -> None:
    host = put_host(session, "h", range(0))
    device = Device(host_id=host.id, uuid="cpu", kind="cpu", name="cpu")
    session.add(device)
    session.add(RolledUp(id=1, minutes_ns=NOW - 900 * NS_PER_S, hours_ns=NOW))
    session.flush()
    session.add(DirtyHour(device_id=device.id, hour_ns=0, marked=1))
    for number, team in enumerate(("vision", "speech")):
        workflow = Workflow(name=team)
        session.add(workflow)
        session.flush()
        run = Run(
            key=f"000000000000000{number}",
            workflow_id=workflow.id,
            team=team,
            state="running",
            start_ns=NOW,
            last_seen_ns=NOW,
            command=[],
            labels={},
            ranks=[],
            trouble=f"{team}: no",
            trouble_ns=NOW + number,
        )
        session.add(run)
        session.flush()
        for state, age_s in (("uploaded", 700 + number), ("failed", 60), ("failed", 2 * 86_400), ("requested", 5)):
            session.add(
                Capture(
                    key=f"{team}-{state}-{age_s}",
                    run_id=run.id,
                    requested_by="ann",
                    requested_ns=NOW - age_s * NS_PER_S,
                    expires_ns=NOW,
                    params={},
                    state=state,
                    reason=f"{team} {age_s}",
                    stages={},
                    expected=[],
                )
            )
    audit(session, "unknown", "token.refuse", "GET /")
    audit(session, "sso:eve", "session.refuse", "sso:eve")
    audit(session, "ann", "trace.download", "7")
    session.flush()
    found = read_collection(session, now=now_ns())
    assert (found.rolled_up_ns, found.late_hours, found.refused) == (NOW - 900 * NS_PER_S, 1, 2)
    assert (found.waiting, found.waiting_since_ns) == (2, NOW - 701 * NS_PER_S)
    assert (found.failed, found.troubled, found.trouble) == (2, 2, "speech: no")
    try:
        see_team("vision")
        found = read_collection(session, now=now_ns())
    finally:
        see_team(None)
    assert (found.hosts, found.waiting, found.failed, found.failure) == (1, 1, 1, "vision 60")
    assert (found.troubled, found.trouble) == (1, "vision: no")
