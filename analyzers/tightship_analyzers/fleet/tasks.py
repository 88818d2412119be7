"""The analyzers' tasks. Each does what the database says is due, so running twice or late does no harm."""

from __future__ import annotations

from celery import shared_task

from tightship_analyzers.fleet import accounting, capture_analysis, idleness, ranking, verifying
from tightship_analyzers.fleet.trouble import for_each_run
from tightship_platform.captures.artifact_store import open_artifacts
from tightship_platform.database.per_process import process_database
from tightship_platform.settings import load_settings
from tightship_platform.tasks.app import ANALYZE_CAPTURE, send
from tightship_platform.tasks.quietly import quietly


@shared_task(name=ANALYZE_CAPTURE)  # type: ignore[untyped-decorator]  # celery carries no types
@quietly
def analyze_capture(key: str) -> None:
    """Do one piece of a capture's analysis: a rank's trace, or joining all; the message for the next one follows."""
    settings, database = load_settings(), process_database()
    work = capture_analysis.work_on(database, open_artifacts(settings), key)
    if work is None:
        return
    if work.rank is not None:
        send(settings, ANALYZE_CAPTURE, key)
        return
    ranking.rank_changed(database)


@shared_task(name="tightship_analyzers.account_runs")  # type: ignore[untyped-decorator]
@quietly
def account_runs() -> None:
    """Bring the accounts up to date."""
    database = process_database()
    with database.session() as session:
        due = accounting.due_runs(session)
    for_each_run(database, due, accounting.account_run, "account")


@shared_task(name="tightship_analyzers.judge_samples")  # type: ignore[untyped-decorator]
@quietly
def judge_samples() -> None:
    """Let the rules on samples judge the runs whose account has changed."""
    database = process_database()
    with database.session() as session:
        due = idleness.due_runs(session)
    for_each_run(database, due, idleness.judge_run, "analysis of samples")


@shared_task(name="tightship_analyzers.rank_opportunities")  # type: ignore[untyped-decorator]
@quietly
def rank_opportunities() -> None:
    """Bring the opportunities in line with the findings."""
    ranking.rank_changed(process_database())


@shared_task(name="tightship_analyzers.verify_applications")  # type: ignore[untyped-decorator]
@quietly
def verify_applications() -> None:
    """Compare what ran since something was applied with what ran before."""
    verifying.verify_applications(process_database())
