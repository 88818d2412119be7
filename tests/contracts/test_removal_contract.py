"""Runs that go, on both databases: by small steps, whole in the end, their device time in the sums of their days."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet_accounts import accounts, by_group
from records import CPU, HOUR, MIN, T0, S, batch, beat, ended, held, host_samples, live, run_samples, samples, started
from records import steps as step_records
from sqlalchemy import delete, func, select, text
from sqlalchemy.orm import Session
from waiting import wait_for

from tightship_platform import ingest
from tightship_platform.captures import files, store_owner
from tightship_platform.captures.artifact_store import ArtifactStore, trace_key
from tightship_platform.database import models
from tightship_platform.database.engine import Database
from tightship_platform.errors import Conflict, Gone, NotFound
from tightship_platform.ingest import RefusedRows
from tightship_platform.ingest.offload import put_offload
from tightship_platform.queries import wholeness
from tightship_platform.queries.hosts import list_hosts
from tightship_platform.queries.runs import list_runs
from tightship_platform.samples.past_accounts import DELETED
from tightship_platform.samples.retention import DAY_NS, day_of
from tightship_platform.tasks.removal import old, runs
from tightship_platform.tasks.removal.requested import Kind, begin_all
from tightship_platform.vocabulary import AccountBy

DAY = day_of(T0)
NEVER_S = time.monotonic() + 10_000


def spent(life_ns: int = 10 * MIN) -> dict[str, int]:
    """The account of a run that held one device for so long."""
    return {"productive": max(life_ns, 23) - 11, "startup": 11}


@pytest.fixture
def store(database: Database, tmp_path: Path) -> ArtifactStore:
    made = ArtifactStore(str(tmp_path / "store"))
    store_owner.claim(database, made)
    return made


def a_run(
    database: Database,
    store: ArtifactStore,
    key: str,
    workflow: str = "train",
    *,
    start_ns: int = T0,
    life_ns: int = 10 * MIN,
    is_over: bool = True,
    **whose: Any,
) -> None:
    """A run with rows in every table that refers to runs, its account and a trace."""
    end = start_ns + life_ns
    times = range(start_ns, start_ns + 5 * S, S)
    with database.session() as session:
        ingest.apply_run(session, started(key, workflow, start_ns), now=end)
        parts = batch(
            devices=[CPU],
            samples=samples(times),
            host_samples=host_samples(times),
            run_samples=run_samples(times, key),
            steps=step_records(times, key),
            allocations=[held(key, start_ns, end)],
        )
        ingest.apply_batch(session, parts, now=end)
        if is_over:
            ingest.apply_run(session, ended(key, workflow, start_ns=start_ns, end_ns=end), now=end)
        run = session.scalars(select(models.Run).where(models.Run.key == key)).one()
        run.accounted_ns = end + 1
        run.user_name, run.team = whose.get("user"), whose.get("team")
        put_offload(session, run, {"layers": 3}, end)
        session.add_all(
            models.RunAccount(run_id=run.id, bucket=name, device_ns=ns) for name, ns in spent(life_ns).items()
        )
        device = session.scalars(select(models.Device.id)).first()
        widths = {"run_id": run.id, "device_id": device, "width_ns": MIN, "samples": 1}
        session.add_all(models.Rollup(time_ns=start_ns + n * MIN, **widths) for n in range(3))
        session.flush()
        capture = models.Capture(key=f"c-{key}", run_id=run.id, requested_by="x", params={}, state="analyzed")
        capture.requested_ns = capture.expires_ns = start_ns
        capture.stages, capture.expected = {}, []
        session.add(capture)
        session.flush()
        file = store.write(trace_key(key, capture.key, 0, "a" * 64), [b"trace"], max_bytes=10)
        trace = models.Trace(run_id=run.id, capture_id=capture.id, rank=0, url=file.key, sha256="a" * 64, summary={})
        trace.bytes, trace.created_ns = file.size_bytes, start_ns
        session.add(trace)
        session.flush()
        session.add(models.CaptureAnalysis(capture_id=capture.id, catalogue="x", body=b"", created_ns=1))
        saving = {"value": 1, "low": 1, "high": 1, "method": "measured", "title": "t", "fix": "f", "unit": "ns"}
        session.add(models.Finding(run_id=run.id, trace_id=trace.id, rule="r", evidence=[], created_ns=1, **saving))


OF_RUNS = (
    *(models.Run, models.Allocation, models.RunAccount, models.RunSample, models.StepStat, models.Rollup),
    *(models.Capture, models.CaptureAnalysis, models.Trace, models.Finding),
    *(models.Plan, models.Action, models.Verification),
)


def counts(database: Database) -> dict[str, int]:
    with database.session() as session:
        return {model.__tablename__: session.scalar(select(func.count()).select_from(model)) or 0 for model in OF_RUNS}


def stored(store: ArtifactStore) -> set[str]:
    return {file.split("/")[1] for file in store.files("traces") if file.endswith(".json.gz")}


def removed(database: Database, store: ArtifactStore, *keys: str, keeps_names: bool = False) -> None:
    with database.session() as session:
        ids = session.scalars(select(models.Run.id).where(models.Run.key.in_(keys))).all()
        for run_id in ids:
            runs.begin(session, run_id, keeps_names=keeps_names)
    assert runs.finish_all(database, store, keys, deadline_s=NEVER_S) == list(keys)


@pytest.mark.parametrize("at_once", [2, runs.ROWS_AT_ONCE])
def test_a_run_goes_with_all_rows_and_files_and_no_other(
    database: Database, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(runs, "ROWS_AT_ONCE", at_once)
    a_run(database, store, "a1")
    before = counts(database)
    assert all(before.values()), before
    a_run(database, store, "a2", "other", start_ns=T0 + HOUR)
    assert stored(store) == {"a1", "a2"}
    removed(database, store, "a2")
    assert counts(database) == before
    assert stored(store) == {"a1"}
    with database.session() as session:
        assert session.scalars(select(models.Workflow.name)).all() == ["train"], "an empty workflow goes"
        assert [one.run for one in list_runs(session)] == ["a1"]
    found = wholeness.check(database, store)
    assert (found.faults, found.orphans, found.traces) == (0, 0, 1)
    assert runs.finish_all(database, store, ["a2"], deadline_s=NEVER_S) == ["a2"], "again does no harm"


def test_what_was_begun_is_finished_by_the_next_one(database: Database, store: ArtifactStore) -> None:
    a_run(database, store, "a1")
    with database.session() as session:
        [run] = session.scalars(select(models.Run)).all()
        runs.begin(session, run.id, keeps_names=False)
    assert wholeness.check(database, store).faults == 0, "no row names a file that may be gone"
    assert runs.finish_all(database, store, ["a1"], deadline_s=time.monotonic() - 1) == [], "no time"
    with database.session() as session:
        assert runs.begun(session) == ["a1"]
        assert runs.finish_all(database, store, runs.begun(session), deadline_s=NEVER_S) == ["a1"]
        assert runs.begun(session) == []
    assert not any(counts(database).values())


def test_one_that_fails_stops_no_other(
    database: Database, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for key in ("a1", "a2", "a3"):
        a_run(database, store, key)
    with database.session() as session:
        keys = begin_all(session, Kind.WORKFLOW, "train")
    delete_file = store.delete

    def refuse(key: str) -> bool:
        if "/a2/" in key:
            raise PermissionError(f"{key} belongs to root")
        return delete_file(key)

    monkeypatch.setattr(store, "delete", refuse)
    assert runs.finish_all(database, store, keys, deadline_s=NEVER_S) == ["a1", "a3"]
    assert "Run a2 is not removed yet" in caplog.text
    monkeypatch.undo()
    with database.session() as session:
        assert runs.finish_all(database, store, runs.begun(session), deadline_s=NEVER_S) == ["a2"]
    assert not any(counts(database).values())
    assert stored(store) == set()


def test_an_upload_that_ends_later_leaves_no_file_for_ever(database: Database, store: ArtifactStore) -> None:
    a_run(database, store, "a1")
    removed(database, store, "a1")
    late = store.write(trace_key("a1", "c-a1", 0, "b" * 64), [b"late"], max_bytes=10)
    modified_ns = store.modified_ns(late.key)
    assert modified_ns is not None
    soon, later = modified_ns + MIN, modified_ns + files.SETTLED_NS + S
    assert files.sweep(database, store, keep_days=90, now=soon).files == 0
    assert files.sweep(database, store, keep_days=90, now=later).files == 1
    assert stored(store) == set()


def test_a_store_of_another_installation_keeps_its_files(database: Database, store: ArtifactStore) -> None:
    a_run(database, store, "a1")
    store.write(store_owner.MARKER, [b"0" * 32], max_bytes=64)
    with pytest.raises(Conflict, match="belongs to installation"):
        runs.finish_all(database, store, ["a1"], deadline_s=NEVER_S)
    assert stored(store) == {"a1"}


# ---- what comes late -------------------------------------------------------------------------------------------------


@pytest.fixture(params=["while it goes", "when it is gone"])
def gone(request: Any, database: Database, store: ArtifactStore) -> Iterator[None]:
    """Run a1 was lost, and deleted."""
    a_run(database, store, "a1", is_over=False)
    with database.session() as session:
        assert ingest.close_lost_runs(session, now=T0 + HOUR) == ["a1"]
        keys = begin_all(session, Kind.RUN, "a1")
    if request.param == "when it is gone":
        runs.finish_all(database, store, keys, deadline_s=NEVER_S)
    yield


def test_what_comes_late_is_refused_and_makes_no_run(database: Database, store: ArtifactStore, gone: None) -> None:
    def apply(session: Session, *runs: str) -> RefusedRows:
        refused = RefusedRows()
        ingest.apply_heartbeat(session, beat(*map(live, runs), time_ns=T0 + HOUR), refused=refused, now=T0 + HOUR)
        return refused

    before = counts(database)
    for record in (started("a1"), ended("a1", end_ns=T0 + 2 * MIN)):
        with pytest.raises(Gone, match="a1 was deleted"), database.session() as session:
            ingest.apply_run(session, record, now=T0 + HOUR)
    with database.session() as session:
        refused = apply(session, "a1")
        assert (refused.count, refused.reason) == (1, "Run a1 was deleted, so nothing more of it is stored")
        at = [T0 + HOUR]
        parts = batch(
            samples=samples(at),
            run_samples=run_samples(at),
            steps=step_records(at),
            allocations=[held("a1", T0 + HOUR)],
        )
        answer = ingest.apply_batch(session, parts, now=T0 + HOUR + S)
        assert (answer.rows, answer.refused, answer.unknown_runs) == (4, 3, [])
    assert counts(database) == before
    with database.session() as session:
        assert apply(session, "a1", "b1").count == 1, "the others are as ever"
        assert session.scalars(select(models.Run.key).where(models.Run.key == "b1")).all() == ["b1"]
    with pytest.raises(NotFound), database.session() as session:
        begin_all(session, Kind.RUN, "c1")


@pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_a_record_that_waits_for_the_end_of_a_removal_makes_no_run(database: Database, store: ArtifactStore) -> None:
    """Its INSERT finds the row that is being deleted, waits, and finds none."""
    a_run(database, store, "a1")
    outcomes: list[Any] = []

    def late(apply: Any) -> None:
        try:
            with database.session() as session:
                outcomes.append(apply(session))
        except Gone:
            outcomes.append("gone")

    def waiting() -> int:
        with database.session() as session:
            blocked = (
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            return int(session.execute(text(blocked)).scalar_one())

    with database.session() as session:
        session.add(models.RemovedRun(key="a1", keeps_names=False, begun_ns=1, removed_ns=2))
        session.execute(delete(models.Run))
        session.flush()
        work = (
            lambda other: ingest.apply_run(other, started("a1"), now=T0 + HOUR),
            lambda other: ingest.apply_heartbeat(other, beat(live("a1"), time_ns=T0 + HOUR), now=T0 + HOUR),
        )
        threads = [threading.Thread(target=late, args=(one,)) for one in work]
        for thread in threads:
            thread.start()
        wait_for(lambda: waiting() >= 1)
    for thread in threads:
        thread.join()
    assert sorted(map(str, outcomes)) == ["[]", "gone"]
    assert counts(database)["run"] == 0


# ---- sums ------------------------------------------------------------------------------------------------------------


def test_accounts_of_past_days_stay_what_they_were(database: Database, store: ArtifactStore) -> None:
    """To the nanosecond by whole days, and in total for every period."""
    a_run(database, store, "a1", start_ns=DAY + 20 * HOUR, life_ns=3 * DAY_NS + 5, team="red")
    a_run(database, store, "a2", start_ns=DAY + 22 * HOUR, life_ns=HOUR)
    a_run(database, store, "b1", "other", start_ns=DAY + DAY_NS, life_ns=0)
    periods = [(DAY + n * DAY_NS, DAY + m * DAY_NS) for n in range(6) for m in range(n + 1, 6)]
    before = [[accounts(database, *period, by) for by in (AccountBy.TEAM, AccountBy.WORKFLOW)] for period in periods]
    removed(database, store, "a1", "a2", "b1", keeps_names=True)
    for period, was in zip(periods, before, strict=True):
        for of in was:
            now = accounts(database, *period, AccountBy(of.by))
            assert (now.buckets, by_group(now)) == (of.buckets, by_group(of)), period
            assert sum(now.buckets.values()) == sum(sum(one.buckets.values()) for one in now.over_time) == now.device_ns
    assert accounts(database, DAY, DAY + DAY_NS).runs == before[0][0].runs == 2
    whole = accounts(database, DAY - HOUR, DAY + 10 * DAY_NS)
    assert whole.buckets["startup"] == 33
    assert whole.device_ns == sum(sum(spent(life_ns).values()) for life_ns in (3 * DAY_NS + 5, HOUR, 0))
    assert whole.runs == 3
    parts = [accounts(database, DAY + n * HOUR, DAY + (n + 7) * HOUR) for n in range(0, 140, 7)]
    assert sum(part.device_ns for part in parts) == whole.device_ns


def test_what_somebody_deleted_stays_in_the_sums_without_a_name(database: Database, store: ArtifactStore) -> None:
    a_run(database, store, "a1", "secret", team="red")
    a_run(database, store, "a2", "secret-2", team="red")
    before = accounts(database, DAY, DAY + DAY_NS)
    removed(database, store, "a1")
    removed(database, store, "a2")
    now = accounts(database, DAY, DAY + DAY_NS)
    assert (now.buckets, now.runs) == (before.buckets, before.runs)
    assert list(by_group(now)) == ["(no team)"]
    assert list(by_group(accounts(database, DAY, DAY + DAY_NS, AccountBy.WORKFLOW))) == [DELETED]


def test_a_run_that_claims_to_have_lived_for_centuries_costs_a_bounded_number_of_rows(
    database: Database, store: ArtifactStore
) -> None:
    a_run(database, store, "a1")
    with database.session() as session:
        session.scalars(select(models.Run)).one().start_ns = 1
    removed(database, store, "a1")
    with database.session() as session:
        rows = session.scalars(select(models.PastAccount)).all()
        assert len(rows) == 3660
        assert sum(sum(row.buckets.values()) for row in rows) == sum(spent().values())


# ---- on request ------------------------------------------------------------------------------------------------------


def test_a_live_run_keeps_all_of_them(database: Database, store: ArtifactStore) -> None:
    a_run(database, store, "a1")
    a_run(database, store, "a2", is_over=False)
    with database.session() as session:
        for run in session.scalars(select(models.Run)):
            run.user_name, run.team = "bob", "red"
    before = counts(database)
    for kind, name in ((Kind.RUN, "a2"), (Kind.WORKFLOW, "train"), (Kind.USER, "bob"), (Kind.TEAM, "red")):
        with (
            pytest.raises(Conflict, match=r"a2.* is running|1 run of .* still lives \(a2\)"),
            database.session() as session,
        ):
            begin_all(session, kind, name)
    with database.session() as session:
        assert runs.begun(session) == []
    assert counts(database) == before


def test_whose_runs_go(database: Database, store: ArtifactStore) -> None:
    whose = {
        "a1": ("w1", "ann", "red"),
        "a2": ("w2", "bob", "red"),
        "a3": ("w3", "bob", "blue"),
        "a4": ("w4", "x", "x"),
    }
    for key, (workflow, user, team) in whose.items():
        a_run(database, store, key, workflow, user=user, team=team)
    with database.session() as session:
        session.add(models.UserTeam(user_name="bob", team="red"))
        w1 = session.scalars(select(models.Workflow).where(models.Workflow.name == "w1")).one()
        session.add(models.CaptureSchedule(workflow_id=w1.id, every_ns=HOUR, params={}))
        w1.owner = "bob"
    with database.session() as session:
        keys = begin_all(session, Kind.USER, "bob", of_all=False)
        session.rollback()
        assert keys == ["a2", "a3"]
        assert begin_all(session, Kind.TEAM, "red") == ["a1", "a2"]
        session.rollback()
        assert begin_all(session, Kind.USER, "bob") == ["a2", "a3"]
        assert session.scalars(select(models.UserTeam)).all() == []
    runs.finish_all(database, store, ["a2", "a3"], deadline_s=NEVER_S)
    with database.session() as session:
        assert set(session.scalars(select(models.Workflow.name))) == {"w1", "w4"}
        assert set(session.scalars(select(models.Workflow.owner))) == {None}
        keys = begin_all(session, Kind.WORKFLOW, "w1")
    runs.finish_all(database, store, keys, deadline_s=NEVER_S)
    with database.session() as session:
        assert set(session.scalars(select(models.Workflow.name))) == {"w4"}, "with its schedule"
        session.add(models.Workflow(name="empty", labels={}))
        session.flush()
        assert begin_all(session, Kind.WORKFLOW, "empty") == []
        assert set(session.scalars(select(models.Workflow.name))) == {"w4"}
        for kind in Kind:
            with pytest.raises(NotFound):
                begin_all(session, kind, "nobody")


# ---- by age ----------------------------------------------------------------------------------------------------------


def remove_old(database: Database, store: ArtifactStore, *, now: int, **days: int) -> old.Removed:
    return old.remove_old(database, store, **({"run_days": 0, "capture_days": 0, "host_days": 0} | days), now=now)


def report(database: Database, at_ns: int) -> None:
    """A host is there."""
    with database.session() as session:
        ingest.apply_batch(session, batch("alive", host_samples=host_samples([at_ns])), now=at_ns)


def test_old_runs_go_when_they_are_over_and_accounted_for(database: Database, store: ArtifactStore) -> None:
    days = range(5)
    for day in days:
        a_run(database, store, f"a{day}", start_ns=DAY + day * DAY_NS, life_ns=HOUR)
    a_run(database, store, "live", start_ns=DAY, is_over=False)
    with database.session() as session:
        of = {run.key: run for run in session.scalars(select(models.Run))}
        of["a0"].source = "import:csv"
        of["a1"].accounted_ns = None
    now = DAY + 43 * DAY_NS + 2 * HOUR
    assert remove_old(database, store, now=now, run_days=40).runs == 0, "by no clock alone"
    report(database, now)
    was = accounts(database, DAY, DAY + 9 * DAY_NS, AccountBy.WORKFLOW)
    found = remove_old(database, store, now=now, run_days=40)
    assert (found.runs, found.failed) == (2, [])
    with database.session() as session:
        assert {run.run for run in list_runs(session)} == {"a0", "a1", "a4", "live"}
        assert session.scalars(select(models.RemovedRun.key).order_by(models.RemovedRun.key)).all() == ["a2", "a3"]
    assert by_group(accounts(database, DAY, DAY + 9 * DAY_NS, AccountBy.WORKFLOW)) == by_group(was)
    assert wholeness.check(database, store).faults == 0
    assert remove_old(database, store, now=now + 4000 * DAY_NS, run_days=40).runs == 0, "years ahead"
    assert remove_old(database, store, now=now + 4000 * DAY_NS).runs == 0, "0 is for ever"
    report(database, now + 401 * DAY_NS)
    remove_old(database, store, now=now + 401 * DAY_NS)
    with database.session() as session:
        session.execute(text("UPDATE removed_run SET removed_ns = 1 WHERE key = 'a2'"))
    remove_old(database, store, now=now + 401 * DAY_NS)
    with database.session() as session:
        assert "a2" not in session.scalars(select(models.RemovedRun.key)).all()


def test_one_old_run_that_cannot_go_stops_no_other(
    database: Database, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("a1", "a2", "a3"):
        a_run(database, store, key)
    report(database, DAY + 50 * DAY_NS)
    finish = runs.finish

    def broken(database: Database, store: ArtifactStore, key: str, *, deadline_s: float) -> bool:
        if key == "a2":
            raise RuntimeError("a defect")
        return finish(database, store, key, deadline_s=deadline_s)

    monkeypatch.setattr(old, "finish", broken)
    monkeypatch.setattr(old, "AT_ONCE", 1)
    found = remove_old(database, store, now=DAY + 50 * DAY_NS, run_days=40)
    assert (found.runs, found.failed) == (2, ["a2"])


def test_old_captures_go_with_traces_and_findings_and_leave_the_account(
    database: Database, store: ArtifactStore
) -> None:
    a_run(database, store, "a1")
    a_run(database, store, "a2", is_over=False)
    a_run(database, store, "a3", start_ns=DAY + 20 * DAY_NS)
    now = DAY + 45 * DAY_NS
    report(database, now)
    before = counts(database)
    assert remove_old(database, store, now=now, capture_days=40).captures == 1
    gone = {"capture", "capture_analysis", "trace", "finding"}
    assert counts(database) == {name: count - (name in gone) for name, count in before.items()}
    assert stored(store) == {"a2", "a3"}
    found = wholeness.check(database, store)
    assert (found.faults, found.orphans) == (0, 0)
    assert remove_old(database, store, now=now, capture_days=40).captures == 0


def test_a_host_that_is_not_heard_of_is_forgotten_until_it_is(database: Database, store: ArtifactStore) -> None:
    a_run(database, store, "a1")
    with database.session() as session:
        ingest.apply_heartbeat(session, beat(time_ns=T0, info={"cpus": 4}), now=T0)
    now = T0 + 41 * DAY_NS
    assert remove_old(database, store, now=now, host_days=40).hosts == 0, "by no clock alone"
    report(database, now)
    assert remove_old(database, store, now=now, host_days=40).hosts == 1
    assert remove_old(database, store, now=now, host_days=40).hosts == 0
    with database.session() as session:
        assert [host.host for host in list_hosts(session)] == ["alive"]
        assert session.scalars(select(models.Host.info).where(models.Host.name == "h1")).all() == [{}]
        assert [device.host for device in list_runs(session)[0].devices] == ["h1"], "its runs know it"
        ingest.apply_heartbeat(session, beat(time_ns=now, info={"cpus": 8}), now=now)
        assert {host.host: host.info for host in list_hosts(session)} == {"alive": {}, "h1": {"cpus": 8}}
