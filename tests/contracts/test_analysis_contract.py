"""From an uploaded capture to findings, account and opportunities, on both databases."""

from __future__ import annotations

import errno
import gzip
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from captured import END, FIRST_STEP, LAST_STEP, a_capture, analyze_capture, begin, finish, recorded
from psycopg.errors import DiskFull
from records import MIN, T0, S, batch, held, run_samples, started, steps
from rule_jobs import job_of
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError
from trace_files import unmarked

from tightship_analyzers.fleet import accounting, capture_analysis, history, idleness, ranking
from tightship_analyzers.fleet.capture_analysis import work_on
from tightship_analyzers.rules.runs.device_held_idle import RULE as HELD_IDLE
from tightship_platform import captures, ingest
from tightship_platform.captures import analysis, store_owner
from tightship_platform.captures.artifact_store import ArtifactStore, StoreTrouble
from tightship_platform.captures.transitions import MAX_ANALYSIS_ATTEMPTS
from tightship_platform.database import ranked_workflows
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Capture, Finding, Opportunity, Run, RunAccount, Trace
from tightship_platform.errors import NotFound
from tightship_platform.queries import findings, opportunities, runs
from tightship_platform.results.filters import Filters
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import CaptureState, OpportunityState, RunState
from tightship_platform.wire import StepRecord

NOW = T0 + 5 * MIN


@pytest.fixture
def artifacts(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(str(tmp_path / "artifacts"))


def analysed(
    database: Database, artifacts: ArtifactStore, name: str, *, run: str = "a1", workflow: str = "train"
) -> str:
    """A run with one analysed capture of a recording."""
    with database.session() as session:
        begin(session, run, workflow)
    key = a_capture(database, artifacts, run, {0: recorded(name)}, now=now_ns())
    assert analyze_capture(database, artifacts, key)
    with database.session() as session:
        finish(session, run, workflow)
    return key


def test_a_capture_becomes_findings(database: Database, artifacts: ArtifactStore) -> None:
    key = analysed(database, artifacts, "starved")
    with database.session() as session:
        capture = session.scalars(select(Capture).where(Capture.key == key)).one()
        [trace] = session.scalars(select(Trace)).all()
        listed = findings.list_findings(session, run="a1")
    assert capture.state == CaptureState.ANALYZED
    assert trace.error is None and trace.analyzed_ns is not None
    assert sum(trace.summary["buckets"].values()) == trace.summary["window_ns"]
    top = listed[0]
    assert (top.rule, top.run, top.trace, top.rank) == ("starved-input", "a1", trace.id, 0)
    assert top.saving.unit == "ns/step" and top.saving.value > 0
    assert top.where.startswith("jobs.py:")


def test_a_second_analysis_replaces_the_first(database: Database, artifacts: ArtifactStore) -> None:
    key = analysed(database, artifacts, "starved")
    assert not analyze_capture(database, artifacts, key), "there is nothing left to do"
    with database.session() as session:
        before = findings.list_findings(session)
        captures.analyze_again(session, key)
    assert analyze_capture(database, artifacts, key)
    with database.session() as session:
        after = findings.list_findings(session)
    assert [replace(one, created_ns=0) for one in after] == [replace(one, created_ns=0) for one in before]


def test_another_worker_may_be_at_it(database: Database, artifacts: ArtifactStore) -> None:
    with database.session() as session:
        begin(session)
    key = a_capture(database, artifacts, "a1", {0: recorded("starved")}, now=now_ns())
    with database.session() as session:
        assert captures.claim_work(session, key) is not None
    assert work_on(database, artifacts, key) is None
    with database.session() as session:
        assert session.scalar(select(func.count()).select_from(Finding)) == 0


def test_an_unknown_capture(database: Database, artifacts: ArtifactStore) -> None:
    with pytest.raises(NotFound):
        analyze_capture(database, artifacts, "nosuch")


def test_ranks_share_their_findings(database: Database, artifacts: ArtifactStore) -> None:
    with database.session() as session:
        begin(session)
    files = {0: recorded("checkpoints"), 1: recorded("rare_checkpoint")}
    key = a_capture(database, artifacts, "a1", files, now=now_ns())
    analyze_capture(database, artifacts, key)
    with database.session() as session:
        listed = findings.list_findings(session)
        worst = session.scalars(select(Trace).where(Trace.rank == 0)).one()
    assert [one.rule for one in listed] == ["synchronous-checkpoint"]
    assert (listed[0].trace, listed[0].rank) == (worst.id, 0), "the rank that loses most"
    assert any("2 of 2 ranks (0, 1)" in getattr(entry, "text", "") for entry in listed[0].evidence)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no trace at all", "of rank 1"),
        (gzip.compress(b'{"runs": []}', mtime=0), "of rank 1"),
    ],
)
def test_a_bad_file_fails_the_capture_with_its_line(
    database: Database, artifacts: ArtifactStore, content: bytes, said: str
) -> None:
    with database.session() as session:
        begin(session)
    key = a_capture(database, artifacts, "a1", {0: recorded("starved"), 1: content}, now=now_ns())
    assert analyze_capture(database, artifacts, key)
    with database.session() as session:
        capture = session.scalars(select(Capture).where(Capture.key == key)).one()
        good, bad = session.scalars(select(Trace).order_by(Trace.rank)).all()
        listed = findings.list_findings(session)
    assert capture.state == CaptureState.FAILED
    assert capture.reason is not None and said in capture.reason and "\n" not in capture.reason
    assert bad.error == capture.reason and bad.summary == {}
    assert good.error is None and good.summary["steps"] > 0
    assert [one.rank for one in listed] == [0], "what the other rank says is kept"


def test_a_deleted_file(database: Database, artifacts: ArtifactStore) -> None:
    with database.session() as session:
        begin(session)
    key = a_capture(database, artifacts, "a1", {0: recorded("starved")}, now=now_ns())
    with database.session() as session:
        artifacts.delete(session.scalars(select(Trace.url)).one())
    assert analyze_capture(database, artifacts, key)
    with database.session() as session:
        capture = session.scalars(select(Capture).where(Capture.key == key)).one()
        assert capture.state == CaptureState.FAILED and "stored file" in (capture.reason or "")


def test_a_store_that_is_away_is_waited_for(
    database: Database, artifacts: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume that is not mounted, a mistyped URL: what was uploaded is analyzed when it is back."""
    monkeypatch.setattr(analysis, "ENQUEUE_NS", 0)
    with database.session() as session:
        begin(session)
    store_owner.claim(database, artifacts)
    key = a_capture(database, artifacts, "a1", {0: recorded("starved")}, now=now_ns())
    folder, elsewhere = tmp_path / "artifacts", tmp_path / "elsewhere"
    folder.rename(elsewhere)
    for _ in range(2 * MAX_ANALYSIS_ATTEMPTS):
        with pytest.raises(StoreTrouble, match="is not the one that this database has used: it is empty"):
            work_on(database, artifacts, key)
    other = ArtifactStore(str(tmp_path / "other"))
    other.write(store_owner.MARKER, [b"f" * 32], max_bytes=99)
    with pytest.raises(StoreTrouble, match="it belongs to installation ffff"):
        work_on(database, other, key)
    elsewhere.rename(folder)
    assert analyze_capture(database, artifacts, key)
    with database.session() as session:
        assert session.scalars(select(Capture.state).where(Capture.key == key)).one() == CaptureState.ANALYZED


def test_a_full_disk_of_the_worker_is_waited_for(
    database: Database, artifacts: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analysis, "ENQUEUE_NS", 0)
    with database.session() as session:
        begin(session)
    key = a_capture(database, artifacts, "a1", {0: recorded("starved")}, now=now_ns())
    full = OperationalError("INSERT", {}, DiskFull("no space left"))
    for trouble in (OSError(errno.ENOSPC, "No space left on device"), full):
        for _ in range(2 * MAX_ANALYSIS_ATTEMPTS):
            with monkeypatch.context() as patched, pytest.raises(type(trouble)):
                patched.setattr(capture_analysis, "_local_copy", raising(trouble))
                work_on(database, artifacts, key)
    assert analyze_capture(database, artifacts, key)


def raising(error: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_the_account_is_exact_and_split_as_the_trace_says(database: Database, artifacts: ArtifactStore) -> None:
    analysed(database, artifacts, "starved")
    with database.session() as session:
        run = session.scalars(select(Run)).one()
        buckets = accounting.account_run(session, run)
        shown = runs.get_run(session, "a1")
        summary = session.scalars(select(Trace.summary)).one()
    assert sum(buckets.values()) == shown.device_ns == END - T0
    assert {name: ns for name, ns in shown.account.items() if ns} == buckets
    assert buckets["startup"] == FIRST_STEP - T0
    assert buckets["shutdown"] == END - LAST_STEP
    stepping = LAST_STEP - FIRST_STEP
    for bucket in ("productive", "input", "host"):
        assert buckets[bucket] == pytest.approx(stepping * summary["buckets"][bucket] / summary["window_ns"], abs=1)


def test_a_failed_run_loses_what_it_did_since_the_checkpoint_that_a_trace_shows(
    database: Database, artifacts: ArtifactStore
) -> None:
    analysed(database, artifacts, "checkpoints")
    with database.session() as session:
        run, trace = session.scalars(select(Run)).one(), session.scalars(select(Trace)).one()
        start_ns, end_ns = trace.summary["window_start_ns"], trace.summary["window_ns"]
        assert start_ns < trace.summary["saved_ns"] <= start_ns + end_ns
        assert "lost" not in accounting.account_run(session, run), "it finished"
        run.state, run.steps = RunState.FAILED.value, 1000
        saved_ns = LAST_STEP - 3 * MIN  # the recording is of another time
        trace.summary = {**trace.summary, "saved_ns": saved_ns}
        session.flush()
        buckets = accounting.account_run(session, run)
        assert buckets["lost"] == LAST_STEP - saved_ns
        assert buckets["startup"] == FIRST_STEP - T0 and buckets["shutdown"] == END - LAST_STEP
        assert sum(buckets.values()) == END - T0
        assert set(buckets) >= {"productive", "checkpoint"}
        run.steps = 0
        session.flush()
        assert "lost" not in accounting.account_run(session, run), "what serves has no work to lose"


@pytest.mark.parametrize(
    ("state", "end_ns", "failed"),
    [
        ("failed", END, True),
        ("timeout", END, True),
        ("out_of_memory", END, True),
        ("lost", END, True),
        ("lost", None, False),
        ("cancelled", END, False),
        ("finished", END, False),
        ("unknown", END, False),
        ("running", None, False),
    ],
)
def test_which_runs_have_failed(state: str, end_ns: int | None, failed: bool) -> None:
    assert history.has_failed(Run(state=state, end_ns=end_ns)) is failed


def test_a_run_that_ends_without_any_activity_never_started(database: Database) -> None:
    with database.session() as session:
        ingest.apply_run(session, started(), now=T0)
        silent = run_samples(range(T0, END, 10 * S), cpu_cores=0.0)
        ingest.apply_batch(session, batch(run_samples=silent, allocations=[held(end_ns=END)]), now=END)
        run = session.scalars(select(Run)).one()
        assert set(accounting.account_run(session, run)) == {"held_idle"}, "it may yet begin"
        finish(session)
        assert accounting.account_run(session, run) == {"never_started": END - T0}


def test_an_untraced_run_is_unexplained(database: Database) -> None:
    with database.session() as session:
        begin(session)
        finish(session)
        buckets = accounting.account_run(session, session.scalars(select(Run)).one())
    assert buckets["unexplained"] == LAST_STEP - FIRST_STEP


def test_a_run_that_counted_no_step_is_unexplained_and_no_saving_is_carried_over_to_it(
    database: Database, artifacts: ArtifactStore
) -> None:
    analysed(database, artifacts, "starved")
    with database.session() as session:
        ingest.apply_run(session, started("a2"), now=T0)
        ingest.apply_batch(session, batch(allocations=[held("a2")]), now=T0 + MIN)
        stepless = session.scalars(select(Run).where(Run.key == "a2")).one()
        stepless.steps, stepless.last_seen_ns = 0, T0 + MIN
        assert accounting.account_run(session, stepless).keys() == {"unexplained"}, "also while it lives"
        finish(session, "a2")
        assert accounting.account_run(session, stepless) == {"unexplained": END - T0}
        accounting.account_run(session, session.scalars(select(Run).where(Run.key == "a1")).one())
    ranking.rank_changed(database, now=END)
    with database.session() as session:
        [first] = opportunities.list_opportunities(session)
    assert first.device_ns == LAST_STEP - FIRST_STEP


def test_accounts_are_made_when_they_are_due(database: Database) -> None:
    with database.session() as session:
        begin(session)
        run = session.scalars(select(Run)).one()
        assert accounting.due_runs(session, now=NOW) == [run.id], "never made"
        accounting.account_run(session, run, now=NOW)
        assert accounting.due_runs(session, now=NOW + S) == []
        assert accounting.due_runs(session, now=NOW + 20 * S) == [run.id], "it lives on"
        finish(session)
        accounting.account_run(session, run, now=END + S)
        assert accounting.due_runs(session, now=END + 2 * S) == []
        assert accounting.due_runs(session, now=END + 20 * S) == [run.id], "records may still arrive"
        accounting.account_run(session, run, now=END + 2 * 3600 * S)
        assert accounting.due_runs(session, now=END + 9 * 3600 * S) == []
        session.add(_trace_of(run, analyzed_ns=END + 10 * 3600 * S))
        session.flush()
        assert accounting.due_runs(session, now=END + 11 * 3600 * S) == [run.id], "a trace was analysed"
        accounting.account_run(session, run, now=END + 11 * 3600 * S)
        ingest.apply_batch(session, batch(steps=steps([END - MIN])), now=END + 12 * 3600 * S)
        assert accounting.due_runs(session, now=END + 12 * 3600 * S) == [run.id], "records came late"


def test_an_end_that_is_reported_late_changes_the_account(database: Database) -> None:
    with database.session() as session:
        begin(session)
        run = session.scalars(select(Run)).one()
        accounting.account_run(session, run, now=END + 30 * 24 * 3600 * S)
        finish(session)
        assert accounting.due_runs(session, now=END + 30 * 24 * 3600 * S) == [run.id]
        accounting.account_run(session, run)
        shown = runs.get_run(session, "a1")
        assert sum(shown.account.values()) == shown.device_ns == END - T0


def _trace_of(run: Run, *, analyzed_ns: int) -> Trace:
    return Trace(
        run_id=run.id, rank=0, url="x", sha256="0" * 64, bytes=1, created_ns=T0, analyzed_ns=analyzed_ns, summary={}
    )


def test_minutes_with_steps_are_those_with_samples(database: Database) -> None:
    """However long the buckets: 200 of a day each span 288,000 minutes, of which 11 have samples."""
    day, later = 86_400 * S, T0 + 300 * 86_400 * S
    with database.session() as session:
        ingest.apply_run(session, started(), now=T0)
        ingest.apply_batch(session, batch(run_samples=run_samples(range(T0, T0 + 10 * MIN, S), cpu_cores=0.0)), now=END)
        ingest.apply_batch(
            session,
            batch(
                steps=[
                    *(StepRecord(run="a1", rank=0, time_ns=T0 + n * day, width_ns=day, steps=1) for n in range(1, 200)),
                    StepRecord(run="a1", rank=0, time_ns=T0 + 30 * S, width_ns=90 * S, steps=1),
                ],
                allocations=[held(end_ns=T0 + 10 * MIN)],
            ),
            now=later,
        )
        run = session.scalars(select(Run)).one()
        found = history.read_history(session, run)
    first = T0 - T0 % MIN
    assert sorted(minute.start_ns for minute in found.minutes) == [first + n * MIN for n in range(11)]
    assert found.stepped == {first, first + MIN, first + 2 * MIN}


def test_held_idle_devices_are_found_and_forgotten(database: Database) -> None:
    with database.session() as session:
        begin(session)
        # Steps end a minute before the end of the run; here the device does nothing from then on.
        busy, idle = range(T0, END - MIN, S), range(END - MIN, END + 4 * MIN, S)
        ingest.apply_batch(session, batch(run_samples=run_samples(busy, cpu_cores=1.0)), now=END)
        ingest.apply_batch(session, batch(run_samples=run_samples(idle, cpu_cores=0.0)), now=END + 4 * MIN)
        run = session.scalars(select(Run)).one()
        run.last_seen_ns = END + 4 * MIN
        buckets = accounting.account_run(session, run)
        idle_ns = 5 * MIN - 40 * S  # T0 is 20 s into a minute: 40 s of the first idle one are cut off
        assert buckets["held_idle"] == idle_ns
        assert sum(buckets.values()) == END + 4 * MIN - T0
        assert idleness.due_runs(session) == [run.id]
        idleness.judge_run(session, run)
        [found] = findings.list_findings(session)
        assert (found.rule, found.saving.value) == (HELD_IDLE.id, idle_ns)
        assert found.trace is None and found.saving.unit == "ns"
        assert idleness.due_runs(session) == [], "nothing has changed"
        # The samples were of another run after all: the account changes, and the finding goes.
        ingest.apply_batch(session, batch(run_samples=run_samples(idle, cpu_cores=1.0)), now=END + 5 * MIN)
        session.execute(RunAccount.__table__.delete())
        run.accounted_ns = now_ns() + S
        assert idleness.due_runs(session) == [run.id]


def test_opportunities_are_ranked_and_keep_their_state(database: Database, artifacts: ArtifactStore) -> None:
    analysed(database, artifacts, "starved", run="a1", workflow="vision")
    analysed(database, artifacts, "rare_checkpoint", run="a2", workflow="science")
    with database.session() as session:
        for run in session.scalars(select(Run)).all():
            accounting.account_run(session, run)
    assert ranking.rank_changed(database, now=END) == 2
    with database.session() as session:
        first, second = opportunities.list_opportunities(session)
    assert [(one.position, one.workflow, one.rules) for one in (first, second)] == [
        (1, "vision", ["starved-input"]),
        (2, "science", ["synchronous-checkpoint"]),
    ]
    stepping = LAST_STEP - FIRST_STEP
    assert first.device_ns == stepping
    assert 0 == first.low_ns < first.recoverable_device_ns <= first.high_ns <= stepping
    with database.session() as session:
        [finding] = findings.list_findings(session, Filters(workflow="vision"))
        assert first.findings == [finding.finding]
        assert first.recoverable_device_ns == pytest.approx(finding.saving.share_frac * stepping, rel=1e-9)
        row = session.get_one(Opportunity, first.opportunity)
        row.state = OpportunityState.DISMISSED.value
        ranked_workflows.mark(session, [row.workflow_id])
    assert ranking.rank_changed(database, now=END + S) == 1
    with database.session() as session:
        again = opportunities.list_opportunities(session, dismissed=True)
    assert [(one.opportunity, one.state, one.position) for one in again] == [
        (second.opportunity, "open", 1),
        (first.opportunity, "dismissed", 2),
    ]
    assert [one.updated_ns for one in again] == [END, END], "nothing changed, nothing was written"


def test_an_open_opportunity_without_findings_disappears(database: Database, artifacts: ArtifactStore) -> None:
    analysed(database, artifacts, "starved", workflow="vision")
    analysed(database, artifacts, "checkpoints", run="a2", workflow="science")
    with database.session() as session:
        for run in session.scalars(select(Run)).all():
            accounting.account_run(session, run)
    ranking.rank_changed(database, now=END)
    with database.session() as session:
        for row in session.scalars(select(Opportunity)):
            if row.rules == ["starved-input"]:
                row.state = OpportunityState.APPLIED.value
        for trace in session.scalars(select(Trace)):
            trace.summary = trace.summary | {"claims": []}
            ranked_workflows.mark(session, [trace.run.workflow_id])
    ranking.rank_changed(database, now=END)
    with database.session() as session:
        left = opportunities.list_opportunities(session)
    assert [(one.rules, one.state) for one in left] == [(["starved-input"], "applied")]


def test_runs_of_long_ago_do_not_count(database: Database, artifacts: ArtifactStore) -> None:
    analysed(database, artifacts, "starved")
    with database.session() as session:
        accounting.account_run(session, session.scalars(select(Run)).one())
    counts = []
    for age_ns in (ranking.RECENT_NS - 2 * ranking.AGAIN_NS, ranking.RECENT_NS, ranking.RECENT_NS + ranking.AGAIN_NS):
        ranking.rank_changed(database, now=T0 + age_ns)
        with database.session() as session:
            counts.append(len(opportunities.list_opportunities(session)))
    assert counts == [1, 1, 0], "nothing changed but the time"


def test_recording_that_slows_the_job_widens_the_saving(database: Database, artifacts: ArtifactStore) -> None:
    # The recording's steps take 15.9 ms; the counter says 5 ms outside of the capture.
    with database.session() as session:
        begin(session)
        ingest.apply_batch(
            session,
            batch(
                steps=[
                    StepRecord(run="a1", rank=0, time_ns=t, width_ns=S, steps=80, last_step_ns=t + S // 2)
                    for t in range(T0 + S, END - MIN, S)
                ]
            ),
            now=END,
        )
    key = a_capture(database, artifacts, "a1", {0: recorded("starved")}, now=NOW)
    with database.session() as session:
        session.scalars(select(Capture).where(Capture.key == key)).one().lease_expires_ns = None
    analyze_capture(database, artifacts, key)
    with database.session() as session:
        [found] = findings.list_findings(session)
        summary = session.scalars(select(Trace.summary)).one()
    assert summary["untraced_step_ns"] == S // 80
    assert found.saving.low == 0 < found.saving.value <= found.saving.high <= S // 80
    assert any("Recording made a step" in getattr(entry, "text", "") for entry in found.evidence)


def test_a_run_that_marks_no_steps_is_judged_by_its_recording(
    database: Database, artifacts: ArtifactStore, tmp_path: Path
) -> None:
    with database.session() as session:
        ingest.apply_run(session, started("s1", "serve"), now=T0)
        ingest.apply_batch(session, batch(allocations=[held("s1")]), now=T0 + MIN)
    file = unmarked(job_of("launch-bound", bad=True).text(), tmp_path / "serving.json").read_bytes()
    key = a_capture(database, artifacts, "s1", {0: gzip.compress(file)}, now=now_ns())
    assert analyze_capture(database, artifacts, key)
    with database.session() as session:
        finish(session, "s1", "serve")
        run = session.scalars(select(Run)).one()
        buckets = accounting.account_run(session, run)
        assert sum(buckets.values()) == END - T0, "to the ns"
        assert not {"startup", "shutdown"} & set(buckets) and buckets["productive"] > 0
    ranking.rank_changed(database, now=END)
    with database.session() as session:
        found = findings.list_findings(session)
        [first, *_] = opportunities.list_opportunities(session)
        [trace] = session.scalars(select(Trace)).all()
    assert {one.saving.unit for one in found} == {"ns/recording"}
    assert first.device_ns == END - T0
    [claim, *_] = trace.summary["claims"]
    assert first.recoverable_device_ns == int(Fraction(claim["share_frac"]) * (END - T0))
