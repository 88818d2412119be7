"""The tasks as the worker runs them: found by name, safe to run twice, quiet about expected trouble."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from captured import a_capture, begin, finish, recorded
from sqlalchemy import select, text
from waiting import PATIENCE_S, wait_for

from tightship_analyzers.fleet import tasks
from tightship_platform.captures.artifact_store import open_artifacts
from tightship_platform.database import ranked_workflows
from tightship_platform.database.locks import locked
from tightship_platform.database.models import Run
from tightship_platform.database.per_process import process_database
from tightship_platform.queries import captures, findings, opportunities, runs
from tightship_platform.tasks.app import ANALYZE_CAPTURE, create_celery
from tightship_platform.tasks.registry import periods_s
from tightship_platform.units import now_ns


@pytest.fixture
def platform(platform_env: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A platform whose database this process opens again, as a fresh worker does."""
    from tightship_platform.database import per_process as module

    monkeypatch.setattr(module, "_opened", {})
    yield platform_env
    process_database().close()


def test_the_worker_finds_every_task_by_its_name(platform: Any) -> None:
    app = create_celery(platform.settings)
    app.loader.import_default_modules()
    wanted = {name for name in periods_s() if name.startswith("tightship_analyzers.")} | {ANALYZE_CAPTURE}
    assert wanted <= set(app.tasks)


def test_from_capture_to_opportunity(platform: Any) -> None:
    database = process_database()
    with database.session() as session:
        begin(session)
    key = a_capture(database, open_artifacts(platform.settings), "a1", {0: recorded("starved")}, now=now_ns())
    tasks.analyze_capture(key)  # the trace
    tasks.analyze_capture(key)  # joined
    with database.session() as session:
        assert captures.get_capture(session, key).state == "analyzed"
        assert runs.get_run(session, "a1").account is not None, "accounted for at once, not with the next period"
        [finding] = findings.list_findings(session)
        [opportunity] = opportunities.list_opportunities(session)
        assert opportunity.findings == [finding.finding], "and ranked"
        finish(session)
    for _ in range(2):
        tasks.account_runs()
        tasks.judge_samples()
        tasks.rank_opportunities()
    with database.session() as session:
        run = runs.get_run(session, "a1")
        assert sum(run.account.values()) == run.device_ns
        assert run.account["startup"] > 0 and run.account["shutdown"] > 0
        assert len(findings.list_findings(session)) == 1


def test_an_unknown_capture_is_one_line_in_the_log(platform: Any, caplog: pytest.LogCaptureFixture) -> None:
    tasks.analyze_capture("nosuch")
    assert "analyze_capture could not run: No capture named 'nosuch'" in caplog.text


@pytest.mark.parametrize("task", [tasks.account_runs, tasks.judge_samples, tasks.rank_opportunities])
def test_a_database_that_is_gone_is_one_line_in_the_log(
    task: Callable[[], None], platform: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from sqlalchemy import text

    with process_database().session() as session:
        session.execute(text("DROP TABLE finding"))
        session.execute(text("DROP TABLE run_account"))
    with caplog.at_level(logging.WARNING):
        task()
    lines = [record for record in caplog.records if record.name == tasks.__name__]
    assert len(lines) <= 1
    assert all("could not run" in line.message and "\n" not in line.message for line in lines)


@pytest.mark.postgres
def test_a_run_that_another_process_accounts_for_is_judged_afterwards(
    make_platform_env: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Both lock the run's row and mark its workflow: in one order, or they wait for each other."""
    for name, value in make_platform_env(database="postgres").variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tightship_platform.database.per_process._opened", {})
    database = process_database()
    with database.session() as session:
        begin(session)
        finish(session)
    tasks.account_runs()
    with database.session() as session:  # the other process, in the middle of its account
        [run] = locked(session, select(Run).where(Run.key == "a1"))
        judging = threading.Thread(target=tasks.judge_samples)
        judging.start()
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        wait_for(lambda: _scalar(database, waiting), "the judgement to wait for the account")
        ranked_workflows.mark(session, [run.workflow_id])
    judging.join(PATIENCE_S)
    assert not judging.is_alive()
    assert "deadlock" not in caplog.text
    with database.session() as session:
        run = session.scalars(select(Run).where(Run.key == "a1")).one()
        assert (run.trouble, run.judged_ns) == (None, run.accounted_ns)
    database.close()


def _scalar(database: Any, statement: Any) -> int:
    with database.session() as session:
        return int(session.scalar(statement))
