"""Imported fleets on both databases: beside the live one, never mixed with it; exact; again and midway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from made_history import SACCT, STEP_S, T0_S, TWO, Direct, account_all, archive, duty, take, written
from records import GPU, MIN, S, beat, ended, held, live, started
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tightship_analyzers.facts.run.held_idle import MAX_ACTIVITY_FRAC
from tightship_analyzers.fleet.activity import LONG_IDLE_NS
from tightship_platform import captures, ingest
from tightship_platform.captures import imported as imported_captures
from tightship_platform.database import ids, models, teams
from tightship_platform.database.engine import Database
from tightship_platform.database.reporters import Reporter
from tightship_platform.errors import Conflict, Forbidden, Invalid, NotFound
from tightship_platform.ingest import imports
from tightship_platform.ingest.standards.measured import MeasuredHost, apply_measured
from tightship_platform.queries.account import fleet_account
from tightship_platform.queries.captures import list_captures
from tightship_platform.queries.collection import read_collection
from tightship_platform.queries.findings import list_findings
from tightship_platform.queries.fleets import get_fleet, list_fleets
from tightship_platform.queries.hosts import list_hosts
from tightship_platform.queries.opportunities import list_opportunities
from tightship_platform.queries.runs import get_run, list_runs
from tightship_platform.queries.samples import list_samples
from tightship_platform.queries.workflows import list_workflows
from tightship_platform.results.filters import Filters
from tightship_platform.results.imported import (
    FleetRecord,
    ImportedCapture,
    ImportedDevice,
    ImportedPart,
    ImportedRun,
    ImportedSamples,
    ImportedTrace,
)
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import AccountBy, FleetFormat
from tightship_platform.wire import Batch, RunEdit

STEP = STEP_S * NS_PER_S
PODS = {
    "aa": [(step, 0.0) for step in range(20)] + [(20, 50.0), (21, 2.0)],
    "bb": [(0, 100.0), (5, 0.0)],
}
"""Pod aa: idle for 20 steps (19 minutes), then half busy; pod bb: a busy step, a hole, an idle step."""
RED = Reporter(name="red-token", team="red")


@pytest.fixture
def genai(database: Database, tmp_path: Path) -> Database:
    """One live run, and an imported fleet that is accounted for."""
    with database.session() as session:
        now = now_ns()
        record = started("live1", "train", now - 10 * MIN, host="h1")
        ingest.apply_run(session, record, now=now)
        beats = beat(live("live1", devices=["GPU-1"]), time_ns=now, host="h1", devices=[GPU])
        ingest.apply_heartbeat(session, beats, now=now)
        allocation = held("live1", now - 10 * MIN, now, device="GPU-1")
        ingest.apply_batch(session, Batch(host="h1", devices=[GPU], allocations=[allocation]), keep_days=14, now=now)
        ingest.apply_run(session, ended("live1", "train", end_ns=now, start_ns=now - 10 * MIN, host="h1"), now=now)
    archive(tmp_path / "pod_gpu_duty_cycle_anon.tar.gz", duty(PODS))
    take(Direct(database), FleetFormat.ALIBABA_GENAI, tmp_path, "old")
    with database.session() as session:
        account_all(session)
    return database


def rows(session: Session) -> dict[str, int]:
    models_of = (models.Run, models.Allocation, models.Sample, models.Device, models.Host, models.Workflow)
    return {one.__name__: session.scalar(select(func.count()).select_from(one)) or 0 for one in models_of}


def test_no_list_mixes_an_import_with_what_is_live(genai: Database) -> None:
    old = Filters(fleet="old")
    with genai.session() as session:
        assert [run.run for run in list_runs(session)] == ["live1"]
        assert len(list_runs(session, old)) == 2
        assert [one.workflow for one in list_workflows(session)] == ["train"]
        assert [one.workflow for one in list_workflows(session, old)] == ["old/pods"]
        assert [one.host for one in list_hosts(session)] == ["h1"]
        assert [one.host for one in list_hosts(session, old)] == ["old/unknown"]
        since = Filters(since_ns=1)
        assert {one.host for one in list_samples(session, since)} <= {"h1"}
        assert {one.host for one in list_samples(session, replace(since, fleet="old"))} == {"old/unknown"}
        assert list_samples(session, run=imports.run_key("old", "aa")), "a run that is named is of whatever fleet it is"
        assert read_collection(session).hosts == 1
        assert list_findings(session) == list_captures(session) == list_opportunities(session) == []
        assert list_opportunities(session, fleet="old") == []
        whole = fleet_account(session, AccountBy.WORKFLOW)
        assert (whole.fleet, whole.runs) == ("live", 1)
        assert [one.key for one in whole.groups] == ["train"]
        assert fleet_account(session, filters=old).runs == 2
        assert ids.find_key(session, ids.RUN, ids.NEWEST) == "live1"
        named = get_run(session, imports.run_key("old", "aa"))
        assert (named.fleet, named.state, named.source) == ("old", "unknown", "import:alibaba-genai")
        with pytest.raises(NotFound, match="fleet"):
            list_runs(session, Filters(fleet="none"))


def test_the_account_of_an_import_is_exact(genai: Database) -> None:
    """By the rules of docs/import.md: a sample speaks for one interval; a hole is not held."""
    with genai.session() as session:
        fleet = get_fleet(session, "old")
        assert fleet.device_ns == 24 * STEP
        assert fleet.busy_ns == round(0.5 * STEP) + round(0.02 * STEP) + STEP
        assert fleet.idle_ns == fleet.device_ns - fleet.busy_ns
        assert fleet.long_idle_ns == 20 * STEP, "the step at 2 % is below 5 %, but its stretch is short"
        assert (fleet.runs, fleet.unmeasured_ns, fleet.unaccounted_runs) == (2, 0, 0)
        for by in AccountBy:
            account = fleet_account(session, by, Filters(fleet="old"))
            assert (account.device_ns, account.runs) == (fleet.device_ns, fleet.runs)
            assert sum(one.device_ns for one in account.groups) == fleet.device_ns
            assert sum(one.busy_ns or 0 for one in account.groups) == fleet.busy_ns
            for one in account.groups:
                assert sum(one.buckets.values()) == one.device_ns
                assert (one.busy_ns or 0) + (one.idle_ns or 0) + one.unmeasured_ns == one.device_ns
        [of_live] = fleet_account(session).groups
        assert (of_live.busy_ns, of_live.idle_ns, of_live.unmeasured_ns) == (None, None, of_live.device_ns)


def test_again_changes_nothing(genai: Database, tmp_path: Path) -> None:
    with genai.session() as session:
        before, known = rows(session), get_fleet(session, "old")
    take(Direct(genai), FleetFormat.ALIBABA_GENAI, tmp_path, "old")
    with genai.session() as session:
        assert rows(session) == before
        assert account_all(session) == 0
        again = get_fleet(session, "old")
        assert (again.device_ns, again.busy_ns, again.rows) == (known.device_ns, known.busy_ns, known.rows)


def test_what_was_killed_midway_goes_on(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tightship_collectors.commands import import_history

    monkeypatch.setattr(import_history, "SAMPLES_AT_ONCE", 5)
    archive(tmp_path / "pod_gpu_duty_cycle_anon.tar.gz", duty(PODS))
    api = Direct(database)
    api.left = 2
    with pytest.raises(KeyboardInterrupt):
        take(api, FleetFormat.ALIBABA_GENAI, tmp_path, "old")
    with database.session() as session:
        assert get_fleet(session, "old").imported_ns is None
        account_all(session)
    api.left = 100
    _, sent = take(api, FleetFormat.ALIBABA_GENAI, tmp_path, "old")
    assert sent.new == sent.parts - 2
    with database.session() as session:
        account_all(session)
        fleet = get_fleet(session, "old")
        assert (fleet.device_ns, fleet.unmeasured_ns) == (24 * STEP, 0)
        assert fleet.imported_ns is not None


def test_a_later_export_replaces_what_it_says_of_a_run(database: Database, tmp_path: Path) -> None:
    def jobs(name: str, state: str, tres: str) -> Path:
        times = "2025-03-01T10:00:00|2025-03-01T12:00:00||0:0"
        return written(tmp_path / name, SACCT, f"7|7|train|ann|vision|{state}|{times}|{tres}|gpu1")

    api = Direct(database)
    take(api, FleetFormat.SLURM_SACCT, jobs("a.txt", "COMPLETED", TWO), "old")
    take(api, FleetFormat.SLURM_SACCT, jobs("b.txt", "FAILED", "gres/gpu=1"), "old")
    with database.session() as session:
        account_all(session)
        [group] = fleet_account(session, AccountBy.STATE, Filters(fleet="old")).groups
        assert (group.key, group.runs, group.devices, group.device_ns) == ("failed", 1, None, 2 * 60 * MIN)
        assert group.busy_ns is None


def test_what_a_person_wrote_over_a_label_stays(database: Database) -> None:
    device = ImportedDevice(host="", uuid="g", name="GPU", spans=[[1, 2]])
    with database.session() as session:
        imports.put_fleet(session, "old", FleetRecord(format="csv"))
        for number, lr in enumerate(("1", "2")):
            start = T0_S * NS_PER_S
            device.spans = [[start, start + 1]]
            known = replace(device, host=imports.NO_HOST, uuid="other")
            labels = {"lr": lr, "seed": "0"}
            run = ImportedRun(
                id="a", workflow="w", state="finished", start_ns=start, end_ns=start + 1, devices=[device, known],
                labels=labels,
            )  # fmt: skip
            imports.put_part(session, "old", ImportedPart(part=f"{number:064x}", runs=[run]))
            ingest.edit_run(session, imports.run_key("old", "a"), RunEdit(labels={"seed": "7"}))
        found = get_run(session, imports.run_key("old", "a"))
    assert found.labels == {"lr": "2", "seed": "7"}
    assert {one.host for one in found.devices} == {"old/unknown"}, "a host may be called as those without a name are"


@contextmanager
def seen_by(team: str | None) -> Iterator[None]:
    teams.see_team(team)
    try:
        yield
    finally:
        teams.see_team(None)


def test_an_import_is_of_the_team_of_its_token(genai: Database, tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="another import's"):
        take(Direct(genai, RED), FleetFormat.ALIBABA_GENAI, tmp_path, "old")
    take(Direct(genai, RED), FleetFormat.ALIBABA_GENAI, tmp_path, "reds")
    with genai.session() as session, seen_by("red"):
        account_all(session)
        assert [one.fleet for one in list_fleets(session)] == ["reds"]
        assert fleet_account(session, filters=Filters(since_ns=1)).device_ns == 0
        assert fleet_account(session, filters=Filters(fleet="reds")).device_ns == 24 * STEP
        assert list_runs(session) == []
        with pytest.raises(NotFound):
            list_runs(session, Filters(fleet="old"))
    with genai.session() as session, seen_by("blue"):
        assert list_fleets(session) == []
        with pytest.raises(NotFound):
            list_runs(session, Filters(fleet="reds"))


def test_live_and_imported_names_do_not_meet(genai: Database) -> None:
    with genai.session() as session:
        ingest.apply_run(session, started("live2", "old/pods", now_ns()), now=now_ns())
        assert get_run(session, "live2").workflow == "live/old/pods"
        with pytest.raises(Forbidden, match="imported fleet"):
            ingest.apply_heartbeat(session, beat(time_ns=now_ns(), host="old/unknown"), now=now_ns())
        now = now_ns()
        measured = MeasuredHost(name="old/unknown", devices={"aa": {now: {"power_w": 1.0}}})
        with pytest.raises(Forbidden, match="imported fleet"):
            apply_measured(session, measured, reporter=RED, keep_days=14, now=now)
    own = Reporter(name="agent", host="h1")
    with genai.session() as session, pytest.raises(Forbidden, match="one host or user only"):
        imports.put_fleet(session, "x", FleetRecord(format="csv"), reporter=own)


def made_part(**changes: Any) -> ImportedPart:
    device = ImportedDevice(host="n1", uuid="g0", name="GPU", spans=[[1, 2]])
    device.spans = [[T0_S * S, T0_S * S + MIN]]
    run = ImportedRun(
        id="r", workflow="w", state="finished", start_ns=T0_S * S, end_ns=T0_S * S + MIN, devices=[device]
    )
    samples = ImportedSamples(host="n1", uuid="g0", time_ns=[T0_S * S], util_frac=[0.5], memory_used_bytes=[None])
    for name, value in changes.items():
        target = {"util_frac": samples, "uuid": samples, "spans": device}.get(name, run)
        setattr(target, name, value)
    return ImportedPart(part="0" * 64, runs=[run], samples=[samples])


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "running"},
        {"state": "exploded"},
        {"end_ns": 5},
        {"util_frac": [1.5]},
        {"util_frac": [0.5, 0.5]},
        {"uuid": "unheld"},
        {"spans": [[5, 6]]},
        {"spans": [[T0_S * S + MIN, T0_S * S]]},
        {"id": "a\nb"},
        {"workflow": ""},
        {"exit_code": 999},
    ],
)
def test_a_part_that_cannot_be_changes_nothing(database: Database, changes: dict[str, Any]) -> None:
    with database.session() as session:
        imports.put_fleet(session, "old", FleetRecord(format="csv"))
    with database.session() as session:
        before = rows(session)
    with pytest.raises(Invalid), database.session() as session:
        imports.put_part(session, "old", made_part(**changes))
    with database.session() as session:
        assert rows(session) == before
        imports.put_part(session, "old", made_part())
        assert rows(session)["Run"] == before["Run"] + 1


@pytest.mark.parametrize("name", ["live", "", "a/b", "x" * 61, "a b"])
def test_a_fleet_has_a_name_fit_for_an_address(database: Database, name: str) -> None:
    with database.session() as session, pytest.raises(Invalid):
        imports.put_fleet(session, name, FleetRecord(format="csv"))


def test_a_removed_import_leaves_nothing_in_the_live_account(genai: Database, tmp_path: Path) -> None:
    import time

    from tightship_platform.captures.artifact_store import open_artifacts
    from tightship_platform.settings import Settings
    from tightship_platform.tasks.removal.requested import Kind, begin_all
    from tightship_platform.tasks.removal.runs import finish

    store = open_artifacts(Settings(home=tmp_path / "home"))
    with genai.session() as session:
        keys = begin_all(session, Kind.WORKFLOW, "old/pods")
    for key in keys:
        finish(genai, store, key, deadline_s=time.monotonic() + 60)
    with genai.session() as session:
        assert [(one.key, one.runs) for one in fleet_account(session, AccountBy.WORKFLOW).groups] == [("train", 1)]
    take(Direct(genai), FleetFormat.ALIBABA_GENAI, tmp_path, "old")
    with genai.session() as session:
        assert len(list_runs(session, Filters(fleet="old"))) == 2, "an import may bring it back"


# ---- any history: what is held is busy, idle or unmeasured, and in one bucket ----------------------------------------

SPAN = st.tuples(st.integers(0, 40), st.integers(1, 20))
HISTORY = st.dictionaries(
    st.integers(0, 2),
    st.tuples(
        st.lists(SPAN, min_size=1, max_size=3),
        st.dictionaries(st.integers(0, 60), st.one_of(st.none(), st.floats(0, 1)), max_size=30),
    ),
    min_size=1,
    max_size=3,
)


def by_hand(spans: list[list[int]], samples: dict[int, float | None], most_ns: int) -> tuple[int, int, float]:
    """Measured, long idle and busy time of one device, sample by sample."""
    measured, long_idle, busy = 0, 0, 0.0
    for start, end in spans:
        times = sorted(time for time, value in samples.items() if start <= time < end and value is not None)
        stretch = last = 0
        for at, after in zip(times, [*times, end][1:], strict=True):
            until = min(after, at + most_ns, end)
            value = samples[at] or 0.0
            measured += until - at
            busy += value * (until - at)
            idle = value < MAX_ACTIVITY_FRAC
            if not (idle and stretch and last == at):
                long_idle += stretch if stretch >= LONG_IDLE_NS else 0
                stretch = 0
            stretch, last = (stretch + until - at, until) if idle else (0, until)
        long_idle += stretch if stretch >= LONG_IDLE_NS else 0
    return measured, long_idle, busy


def test_any_history_is_conserved(make_database_url: Any, tmp_path: Path) -> None:
    from tightship_platform.database.engine import open_database
    from tightship_platform.settings import Settings

    settings = Settings(home=tmp_path, database_url=make_database_url("sqlite", migrated=True))
    number = 0
    with open_database(settings) as database:

        @examples(40, suppress_health_check=[HealthCheck.too_slow])
        @given(HISTORY)
        def conserved(history: dict[int, Any]) -> None:
            nonlocal number
            number += 1
            name, most_ns, base = f"f{number}", 2 * MIN, T0_S * S
            devices, samples, measured, long_idle, busy = [], [], 0, 0, 0.0
            for device, (given_spans, given_samples) in history.items():
                raw = sorted([base + MIN * at, base + MIN * (at + long)] for at, long in given_spans)
                spans: list[list[int]] = []
                for start, end in raw:
                    if not spans or start > spans[-1][1]:
                        spans.append([start, end])
                    spans[-1][1] = max(spans[-1][1], end)
                of_device = {base + MIN * at + at * S // 7: value for at, value in given_samples.items()}
                found = by_hand(spans, of_device, most_ns)
                measured, long_idle, busy = measured + found[0], long_idle + found[1], busy + found[2]
                devices.append(ImportedDevice(host="n", uuid=str(device), name="GPU", spans=spans))
                times = sorted(of_device)
                samples.append(
                    ImportedSamples(
                        host="n",
                        uuid=str(device),
                        time_ns=times,
                        util_frac=[of_device[time] for time in times],
                        memory_used_bytes=[None] * len(times),
                    )
                )
            ends = [span for one in devices for span in one.spans]
            run = ImportedRun(
                id="r",
                workflow="w",
                state="unknown",
                start_ns=min(start for start, _ in ends),
                end_ns=max(end for _, end in ends),
                devices=devices,
            )
            with database.session() as session:
                imports.put_fleet(session, name, FleetRecord(format="csv", interval_ns=most_ns))
                imports.put_part(session, name, ImportedPart(part=f"{number:064x}", runs=[run], samples=samples))
                account_all(session)
                fleet = get_fleet(session, name)
                [group] = fleet_account(session, AccountBy.RUN, Filters(fleet=name)).groups
            whole = sum(end - start for start, end in ends)
            assert fleet.device_ns == group.device_ns == sum(group.buckets.values()) == whole
            assert (group.busy_ns is None) == (measured == 0)
            assert (group.busy_ns or 0) + (group.idle_ns or 0) + group.unmeasured_ns == whole
            assert whole - group.unmeasured_ns == measured
            assert abs((group.busy_ns or 0) - busy) <= len(ends) + 1
            assert (fleet.long_idle_ns or 0) == long_idle

        conserved()


def test_a_capture_awaits_its_files_until_they_are_there(database: Database) -> None:
    start = T0_S * NS_PER_S
    device = ImportedDevice(host="", uuid="a/0", name="GPU", spans=[[start, start + S]])
    run = ImportedRun(id="a", workflow="w", state="unknown", start_ns=start, end_ns=start + S, devices=[device])
    traces = [ImportedTrace(rank=rank, sha256=str(rank) * 64) for rank in (0, 1)]
    wanted = ImportedCapture(run="a", start_ns=start, duration_ns=S, traces=traces)
    now = now_ns()

    def store(session: Session, key: str, rank: int) -> bool:
        url = f"traces/x/{key}/rank-{rank}"
        sha256 = str(rank) * 64
        return imported_captures.file_stored(session, key, rank=rank, sha256=sha256, size_bytes=1, url=url).completed

    with database.session() as session:
        imports.put_fleet(session, "old", FleetRecord(format="kineto"), reporter=RED)
        with pytest.raises(NotFound, match="run of the import"):
            imports.put_capture(session, "old", wanted, reporter=RED)
        imports.put_part(session, "old", ImportedPart(part="0" * 64, runs=[run]), reporter=RED)
        expected = imports.put_capture(session, "old", wanted, reporter=RED)
        assert expected.missing == [0, 1]
        for stranger, refusal in (
            (Reporter(name="blue-token", team="blue"), Conflict),
            (Reporter(name="h1-token", host="h1"), Forbidden),
        ):
            with pytest.raises(refusal):
                imports.put_capture(session, "old", wanted, reporter=stranger)
            with pytest.raises(refusal):
                imports.require_capture(session, "old", expected.capture, reporter=stranger)
        imports.require_capture(session, "old", expected.capture, reporter=RED)
        with pytest.raises(NotFound, match="capture of the import"):
            imports.require_capture(session, "old", "nosuch", reporter=RED)
        with pytest.raises(Conflict, match="does not await this file"):
            imported_captures.check_file(session, expected.capture, 0, "1" * 64)
        assert not store(session, expected.capture, 0)
    with database.session() as session:  # the importer was killed
        swept = captures.sweep(session, lambda key: None, now=now + 3600 * NS_PER_S)
        assert swept.failed == [expected.capture]
        with pytest.raises(Conflict, match="import it again"):
            imported_captures.check_file(session, expected.capture, 1, "1" * 64)
    with database.session() as session:
        again = imports.put_capture(session, "old", wanted, reporter=RED)
        assert (again.capture, again.missing) == (expected.capture, [1])
        assert store(session, again.capture, 1)
        assert not store(session, again.capture, 1), "the same file again changes nothing"
        assert imports.put_capture(session, "old", wanted, reporter=RED).missing == []
        with pytest.raises(Conflict, match="is being analyzed"):
            imports.put_capture(session, "old", replace(wanted, traces=traces[:1]), reporter=RED)
        captures.fail(session, again.capture, "damaged")
        changed = [traces[0], ImportedTrace(rank=1, sha256="c" * 64)]
        assert imports.put_capture(session, "old", replace(wanted, traces=changed), reporter=RED).missing == [1]
        [found] = list_captures(session, Filters(fleet="old"))
        assert (found.state, [one.rank for one in found.ranks]) == ("written", [0])


@pytest.mark.parametrize(
    "bad",
    [
        {"traces": []},
        {"traces": [ImportedTrace(rank=0, sha256="a" * 64)] * 2},
        {"traces": [ImportedTrace(rank=-1, sha256="a" * 64)]},
        {"traces": [ImportedTrace(rank=0, sha256="../x")]},
        {"traces": [ImportedTrace(rank=0, sha256="a" * 64, host="a\nb")]},
        {"start_ns": 5},
        {"duration_ns": 10**15},
        {"run": "a\0b"},
    ],
)
def test_a_capture_that_cannot_be_is_refused(database: Database, bad: dict[str, Any]) -> None:
    good = ImportedCapture(
        run="a", start_ns=T0_S * NS_PER_S, duration_ns=S, traces=[ImportedTrace(rank=0, sha256="a" * 64)]
    )
    with database.session() as session, pytest.raises(Invalid):
        imports.put_capture(session, "old", replace(good, **bad))
