"""What the API, the command line and the dashboard read: keys, order, exact sums, thinning; on both databases."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
from examples import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from records import (
    CPU,
    GPU,
    HOUR,
    MIN,
    T0,
    S,
    ask,
    batch,
    beat,
    ended,
    held,
    live,
    run_samples,
    samples,
    started,
    steps,
)
from sqlalchemy import delete
from sqlalchemy.orm import Session

from tightship_platform import captures, ingest
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Finding, Opportunity, Run, RunAccount, Trace, Workflow
from tightship_platform.errors import Invalid, NotFound
from tightship_platform.queries import findings, fleet, opportunities, runs, timeline, workflows
from tightship_platform.queries.allocations import union
from tightship_platform.queries.captures import find_trace, get_capture, list_captures
from tightship_platform.results.filters import Filters
from tightship_platform.results.fleet import FleetAccount
from tightship_platform.samples import rollups
from tightship_platform.vocabulary import Bucket

NOW = T0 + MIN
DAY = 24 * HOUR


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


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_runs_have_the_keys_that_other_programs_rely_on(session: Session) -> None:
    _run(session)
    promised = [
        "run",
        "workflow",
        "team",
        "owner",
        "state",
        "exit_code",
        "start_ns",
        "end_ns",
        "devices",
        "steps",
        "device_ns",
        "account",
    ]
    (listed,) = runs.list_runs(session)
    assert set(promised) <= set(vars(listed))
    detailed = runs.get_run(session, "a1")
    assert {*promised, "host", "user", "command", "labels", "reason", "simulated", "ranks"} <= set(vars(detailed))
    assert detailed.account is None


def test_runs_are_listed_newest_first_and_filtered(session: Session) -> None:
    for number in range(5):
        _run(session, f"r{number}", f"w{number % 2}", start_ns=T0 + number * S, end_ns=T0 + 9 * S, exit_code=number % 2)
    ingest.apply_run(session, started("live", "w0", start_ns=T0 + 9 * S), now=NOW)
    assert [run.run for run in runs.list_runs(session)] == ["live", "r4", "r3", "r2", "r1", "r0"]
    assert [run.run for run in runs.list_runs(session, limit=2)] == ["live", "r4"]
    assert [run.run for run in runs.list_runs(session, Filters(workflow="w1"))] == ["r3", "r1"]
    assert [run.run for run in runs.list_runs(session, Filters(workflow="w0", state="finished"))] == ["r4", "r2", "r0"]
    assert runs.list_runs(session, Filters(workflow="nope")) == []


@pytest.mark.parametrize(
    "more", [{"filters": Filters(state="dancing")}, {"limit": 0}, {"limit": 10_001}, {"limit": -1}]
)
def test_filters_that_cannot_be_are_refused(session: Session, more: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        runs.list_runs(session, **more)


def test_an_account_and_the_device_time_belong_together(session: Session) -> None:
    run = _run(session, start_ns=T0)
    ingest.apply_batch(session, batch(devices=[CPU], allocations=[held(end_ns=T0 + 9 * S)]), now=NOW)
    assert runs.get_run(session, "a1").device_ns == 9 * S
    _account(session, run, productive=4 * S, input=5 * S)
    found = runs.get_run(session, "a1")
    assert found.account == {**dict.fromkeys(map(str, Bucket), 0), "productive": 4 * S, "input": 5 * S}
    assert sum(found.account.values()) == found.device_ns == 9 * S
    # A live run has gone on since its account was made.
    ingest.apply_run(session, started("b2"), now=NOW)
    ingest.apply_heartbeat(session, beat(live("b2"), time_ns=NOW), now=NOW)
    _account(session, runs.find_run(session, "b2"), NOW - 30 * S, productive=30 * S)
    assert runs.get_run(session, "b2").device_ns == 30 * S


def test_unknown_keys_are_not_found_with_a_hint(session: Session) -> None:
    for read in (
        lambda: runs.get_run(session, "nope"),
        lambda: timeline.run_timeline(session, "nope"),
        lambda: get_capture(session, "nope"),
        lambda: list_captures(session, run="nope"),
        lambda: find_trace(session, 7),
        lambda: find_trace(session, 2**70),
        lambda: findings.get_finding(session, 7),
        lambda: findings.get_finding(session, -(2**70)),
        lambda: findings.list_findings(session, run="nope"),
        lambda: opportunities.get_opportunity(session, 7),
    ):
        with pytest.raises(NotFound, match=r"; (see|it was|a new)"):
            read()


# ---- captures, findings, opportunities, workflows --------------------------------------------------------------------


def test_captures_are_listed_newest_first(session: Session) -> None:
    for key in ("a1", "b2"):
        ingest.apply_run(session, started(key), now=NOW)
    asked = [captures.request(session, ask(key), now=NOW + i).key for i, key in enumerate(("a1", "b2", "a1"))]
    assert [capture.capture for capture in list_captures(session)] == asked[::-1]
    assert [capture.capture for capture in list_captures(session, run="a1")] == [asked[2], asked[0]]
    first = get_capture(session, asked[0])
    promised = "capture run workflow state reason requested_ns requested_by stages expected params ranks latency_s"
    assert set(promised.split()) <= set(vars(first))
    assert (first.latency_s, first.ranks, first.stages) == (None, [], {"requested": NOW})


def _finding(run: Run, rule: str, share: float | None, trace: Trace | None = None) -> Finding:
    return Finding(
        rule=rule,
        run=run,
        trace=trace,
        title="Device waits",
        place="train.py:12",
        fix="num_workers=8",
        unit="ns/step",
        value=5,
        low=4,
        high=6,
        method="simulated",
        share_frac=share,
        evidence=[{"kind": "fact", "text": "x", "value": 1.5, "unit": "ms"}],
        created_ns=NOW,
    )


def test_findings_are_listed_by_share(session: Session) -> None:
    first, second = _run(session), _run(session, "b2", "other")
    trace = Trace(run=first, rank=3, pid=7, url="x", sha256="0" * 64, bytes=1, created_ns=NOW, summary={})
    session.add_all(
        [_finding(first, "small", 0.1), _finding(first, "none", None), _finding(first, "large", 0.4, trace)]
    )
    session.add(_finding(second, "other", 0.2))
    session.flush()
    assert [f.rule for f in findings.list_findings(session)] == ["large", "other", "small", "none"]
    assert [f.rule for f in findings.list_findings(session, run="a1")] == ["large", "small", "none"]
    assert [f.rule for f in findings.list_findings(session, Filters(workflow="other"))] == ["other"]
    found = findings.get_finding(session, findings.list_findings(session)[0].finding)
    assert vars(found.saving) == {
        "value": 5,
        "unit": "ns/step",
        "low": 4,
        "high": 6,
        "method": "simulated",
        "share_frac": 0.4,
    }
    assert (found.run, found.workflow, found.trace, found.rank) == ("a1", "train", trace.id, 3)
    assert (found.where, found.fix) == ("train.py:12", "num_workers=8")
    assert [vars(entry) for entry in found.evidence] == [{"kind": "fact", "text": "x", "value": 1.5, "unit": "ms"}]
    assert findings.list_findings(session)[-1].rank is None


def test_opportunities_keep_their_order(session: Session) -> None:
    workflow = Workflow(name="train", team="vision", labels={})
    for position in (2, 1):
        session.add(
            Opportunity(
                workflow=workflow,
                key=f"r{position}",
                title="t",
                rules=[f"r{position}"],
                findings=[1],
                fix="f",
                device_ns=100,
                position=position,
                state="open",
                updated_ns=NOW,
                value=10,
                low=8,
                high=12,
                method="bound",
            )
        )
    session.flush()
    found = opportunities.list_opportunities(session)
    assert [one.position for one in found] == [1, 2]
    promised = (
        "position workflow rules recoverable_device_ns low_ns high_ns method fix team title state findings device_ns"
    )
    assert set(promised.split()) <= set(vars(found[0]))
    assert (found[0].recoverable_device_ns, found[0].team, found[0].rules) == (10, "vision", ["r1"])
    assert opportunities.get_opportunity(session, found[0].opportunity) == found[0]


def test_workflows_count_their_runs(session: Session) -> None:
    _run(session, "a1", "one", start_ns=T0)
    _run(session, "a2", "one", start_ns=T0 + S)
    ingest.apply_run(session, started("b1", "two", start_ns=T0 + 2 * S), now=NOW)
    captures.set_schedule(session, "two", 10 * MIN)
    listed = workflows.list_workflows(session)
    assert [(w.workflow, w.runs, w.live, w.last_start_ns) for w in listed] == [
        ("two", 1, 1, T0 + 2 * S),
        ("one", 2, 0, T0 + S),
    ]
    assert listed[0].schedule.every_ns == 10 * MIN
    assert listed[1].schedule is None


# ---- the fleet -------------------------------------------------------------------------------------------------------


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
        _account(session, runs.find_run(session, f"r{number}"), **parts)
    whole = fleet.fleet_account(session, since_ns=T0, until_ns=T0 + 3 * HOUR)
    assert whole.runs == 12
    assert whole.device_ns == sum(run.device_ns for run in runs.list_runs(session))
    _check_sums(whole)
    # Periods that meet add up to the whole, wherever they are cut.
    for cut in (T0 + 1, T0 + 17 * MIN + 3, T0 + HOUR, T0 + 2 * HOUR):
        before = fleet.fleet_account(session, since_ns=T0, until_ns=cut)
        after = fleet.fleet_account(session, since_ns=cut, until_ns=T0 + 3 * HOUR)
        for bucket, ns in whole.buckets.items():
            assert before.buckets[bucket] + after.buckets[bucket] == ns
        _check_sums(before)
        _check_sums(after)


def _check_sums(account: FleetAccount) -> None:
    for parts in (
        account.by_team.values(),
        account.by_workflow.values(),
        [s.buckets for s in account.over_time],
    ):
        for bucket, ns in account.buckets.items():
            assert sum(part[bucket] for part in parts) == ns
    assert sum(account.buckets.values()) == account.device_ns
    assert set(account.buckets) == set(map(str, Bucket))
    assert len(account.over_time) <= fleet.SLICES + 1
    sizes = [sum(part.values()) for part in account.by_workflow.values()]
    assert sizes == sorted(sizes, reverse=True)


def test_the_fleet_says_what_it_lacks_and_what_is_simulated(session: Session) -> None:
    run = _run(session)
    _run(session, "b2")
    _account(session, run, productive=5)
    account = fleet.fleet_account(session, since_ns=T0 - S, until_ns=T0 + MIN)
    assert (account.runs, account.unaccounted_runs, account.simulated) == (1, 1, False)
    assert account.by_team == {fleet.NO_TEAM: account.buckets}
    run.simulated = True
    session.flush()
    assert fleet.fleet_account(session, since_ns=T0 - S, until_ns=T0 + MIN).simulated is True
    nothing = fleet.fleet_account(session, since_ns=T0 - HOUR, until_ns=T0)
    assert (nothing.device_ns, nothing.runs, nothing.over_time) == (0, 0, [])
    with pytest.raises(Invalid, match="since_ns before until_ns"):
        fleet.fleet_account(session, since_ns=T0, until_ns=T0)


def test_a_run_of_no_length_keeps_its_device_time(session: Session) -> None:
    _account(session, _run(session, start_ns=T0, end_ns=T0), unexplained=3)
    account = fleet.fleet_account(session, since_ns=T0, until_ns=T0 + S)
    assert account.buckets["unexplained"] == account.device_ns == 3
    assert fleet.fleet_account(session, since_ns=T0 - S, until_ns=T0).device_ns == 0


# ---- one run over time -----------------------------------------------------------------------------------------------


def _timed(session: Session, seconds: int, *, now: int) -> None:
    ingest.apply_run(session, ended(start_ns=T0, end_ns=T0 + seconds * S), now=now)
    times = range(T0, T0 + seconds * S, S)
    ingest.apply_batch(
        session,
        batch(
            devices=[CPU],
            samples=[s for t in times for s in samples([t], util_frac=((t - T0) // S % 2) / 2, memory_used_bytes=100)],
            run_samples=run_samples(times, cpu_cores=1.5),
            steps=steps(times, each=4),
            allocations=[held(end_ns=T0 + seconds * S)],
        ),
        now=now,
    )


def test_a_timeline_is_thinned_in_the_database(session: Session) -> None:
    _timed(session, 100, now=NOW)
    found = timeline.run_timeline(session, "a1", points=10)
    assert (found.start_ns, found.end_ns, found.width_ns) == (T0, T0 + 100 * S, 10 * S)
    (device,) = found.devices
    assert (device.host, device.uuid, device.kind, device.name) == ("h1", "cpu", "cpu", "Test processor")
    assert device.time_ns == [T0 + i * 10 * S for i in range(10)]
    assert device.util_frac == [0.25] * 10
    assert device.memory_used_bytes == [100] * 10
    assert device.power_w == [None] * 10
    assert found.run_samples[0].cpu_cores == [1.5] * 10
    assert [vars(rank) for rank in found.steps] == [{"rank": 0, "time_ns": device.time_ns, "steps_per_s": [4.0] * 10}]
    every = timeline.run_timeline(session, "a1", points=5000)
    assert len(every.devices[0].time_ns) == 100
    assert every.devices[0].util_frac[:4] == [0.0, 0.5, 0.0, 0.5]


def test_a_stall_shows_as_no_steps(session: Session) -> None:
    ingest.apply_run(session, ended(start_ns=T0, end_ns=T0 + 60 * S), now=NOW)
    reported = steps([T0 + 2 * S, T0 + 3 * S, *range(T0 + 40 * S, T0 + 60 * S, S)])
    reported += steps([T0 + 20 * S], each=10, width_ns=10 * S)
    ingest.apply_batch(session, batch(steps=reported), now=NOW)
    (rank,) = timeline.run_timeline(session, "a1", points=30).steps
    rates = dict(zip(((t - T0) // S for t in rank.time_ns), rank.steps_per_s, strict=True))
    assert rates[2] == 2.0
    assert rates[4] == rates[10] == rates[18] == 0.0
    assert rates[20] == rates[28] == 1.0
    assert rates[30] == rates[38] == 0.0
    assert rates[40] == rates[58] == 2.0
    assert list(rates) == list(range(2, 60, 2))


def test_buckets_that_straddle_slices_show_a_steady_rate(session: Session) -> None:
    ingest.apply_run(session, ended(start_ns=T0, end_ns=T0 + 100 * S), now=NOW)
    ingest.apply_batch(session, batch(steps=steps(range(T0, T0 + 100 * S, 10 * S), each=40, width_ns=10 * S)), now=NOW)
    (rank,) = timeline.run_timeline(session, "a1", points=14).steps
    assert rank.steps_per_s == [4.0] * len(rank.time_ns)


def test_records_after_the_end_extend_the_time_shown(session: Session) -> None:
    """A launcher's clock was set back, or an agent's is ahead: there is not a slice per nanosecond."""
    ingest.apply_run(session, ended(start_ns=T0, end_ns=T0), now=NOW)
    reported = steps([T0, T0 + 10 * S, T0 + 20 * S], each=5, width_ns=10 * S)
    ingest.apply_batch(session, batch(devices=[CPU], steps=reported, run_samples=run_samples([T0 + 7 * S])), now=NOW)
    found = timeline.run_timeline(session, "a1", points=6)
    assert (found.start_ns, found.end_ns, found.width_ns) == (T0, T0 + 30 * S, 5 * S)
    [series] = found.steps
    assert (series.rank, series.time_ns) == (0, [T0 + i * 5 * S for i in range(6)])
    assert series.steps_per_s == pytest.approx([0.5] * 6)


def test_a_bucket_that_outlasts_its_run_is_shown_to_the_end(session: Session) -> None:
    """The agent's buckets end every 10 s, a launcher's run when it likes."""
    ingest.apply_run(session, ended(start_ns=T0, end_ns=T0 + 12 * S), now=NOW)
    ingest.apply_batch(session, batch(steps=steps([T0, T0 + 10 * S], each=10, width_ns=10 * S)), now=NOW)
    found = timeline.run_timeline(session, "a1", points=12)
    assert found.end_ns == T0 + 12 * S
    assert found.steps[0].time_ns == [T0 + i * S for i in range(12)]


@given(
    end_ns=st.sampled_from([0, 1, S, DAY, 4000 * DAY]),
    buckets=st.lists(
        st.tuples(
            st.integers(0, 4),
            st.one_of(st.integers(-2, 40), st.integers(-2, NOW - T0), st.integers(-2, DAY)),
            st.one_of(st.integers(1, 40), st.integers(1, DAY)),
        ),
        min_size=1,
        max_size=40,
    ),
    points=st.sampled_from([1, 2, 7, 600]),
)
@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_times_make_a_timeline_long(
    session: Session, end_ns: int, buckets: list[tuple[int, int, int]], points: int
) -> None:
    session.rollback()
    much_later = T0 + 4001 * DAY
    ingest.apply_run(session, ended(start_ns=T0, end_ns=T0 + end_ns), now=much_later)
    reported = [one for rank, at, width_ns in buckets for one in steps([T0 + at], rank=rank, width_ns=width_ns)]
    times = [T0 + at for _, at, _ in buckets]
    ingest.apply_batch(session, batch(devices=[CPU], steps=reported, run_samples=run_samples(times)), now=much_later)
    found = timeline.run_timeline(session, "a1", points=points)
    for series in (*found.steps, *found.run_samples, *found.devices):
        assert len(series.time_ns) <= points + 1
        assert list(series.time_ns) == sorted(set(series.time_ns))
        assert all(found.start_ns <= t <= found.end_ns for t in series.time_ns)
    assert all(rate >= 0 for series in found.steps for rate in series.steps_per_s)


def test_holes_of_very_many_ranks_are_not_filled(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hole then shows by its first and its last slice: the same line."""
    monkeypatch.setattr(timeline, "MAX_FILLED", 2 * 100)
    ingest.apply_run(session, ended(start_ns=T0, end_ns=T0 + 100 * S), now=NOW)
    two = [T0, T0 + 99 * S]
    for ranks, shown in ((2, list(range(100))), (3, [0, 1, 98, 99])):
        reported = [one for rank in range(ranks) for one in steps(two, rank=rank)]
        ingest.apply_batch(session, batch(steps=reported), now=NOW)
        found = timeline.run_timeline(session, "a1", points=100).steps
        assert [[(t - T0) // S for t in rank.time_ns] for rank in found] == [shown] * ranks
        assert {rate for rank in found for rate in rank.steps_per_s[1:-1]} == {0.0}


def test_long_runs_are_read_from_their_rollups(session: Session) -> None:
    now = T0 + 3 * HOUR
    ingest.apply_run(session, started(), now=now)
    minutes = range(T0, T0 + 2 * HOUR, 20 * S)
    ingest.apply_batch(
        session, batch(devices=[CPU], allocations=[held()], samples=samples(minutes, util_frac=0.5)), now=now
    )
    ingest.apply_heartbeat(session, beat(live(), time_ns=T0 + 2 * HOUR), now=T0 + 2 * HOUR)
    rollups.roll_up(session, now=T0 + 2 * HOUR)
    (device,) = timeline.run_timeline(session, "a1", points=60).devices
    assert device.util_frac == [0.5] * len(device.time_ns)
    assert 59 <= len(device.time_ns) <= 62
    (device,) = timeline.run_timeline(session, "a1", points=2).devices
    assert len(device.time_ns) in (2, 3)


def test_captures_stand_in_the_timeline(session: Session) -> None:
    ingest.apply_run(session, started(), now=NOW)
    key = captures.request(session, ask("a1"), now=NOW).key
    assert [vars(span) for span in timeline.run_timeline(session, "a1").captures] == [
        {"capture": key, "state": "requested", "requested_ns": NOW, "start_ns": None, "end_ns": None}
    ]


@pytest.mark.parametrize("points", [0, -1, 5001])
def test_points_out_of_range_are_refused(session: Session, points: int) -> None:
    with pytest.raises(Invalid, match="points"):
        timeline.run_timeline(session, "a1", points=points)


def test_two_devices_have_two_series(session: Session) -> None:
    ingest.apply_run(session, ended(start_ns=T0, end_ns=T0 + 10 * S), now=NOW)
    records = [held(end_ns=T0 + 10 * S), held(end_ns=T0 + 5 * S, device="GPU-1")]
    both = [*samples([T0], "cpu", util_frac=0.1), *samples([T0 + S], "GPU-1", util_frac=0.9)]
    ingest.apply_batch(session, batch(devices=[CPU, GPU], allocations=records, samples=both), now=NOW)
    found = timeline.run_timeline(session, "a1")
    assert [(d.uuid, d.util_frac) for d in found.devices] == [("GPU-1", [0.9]), ("cpu", [0.1])]
    assert [d.device for d in found.run_samples] == ["GPU-1", "cpu"]


# ---- intervals -------------------------------------------------------------------------------------------------------


@examples(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12))
def test_a_union_holds_every_nanosecond_once(intervals: list[tuple[int, int]]) -> None:
    joined = union(intervals)
    assert {t for start, end in joined for t in range(start, end)} == {
        t for start, end in intervals for t in range(start, end)
    }
    assert all(start < end for start, end in joined)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(joined))
