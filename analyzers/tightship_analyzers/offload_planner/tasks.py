"""The planner's tasks. Each does what the database says is due, so running twice or late does no harm."""

from __future__ import annotations

import logging

from celery import shared_task

from tightship_analyzers.offload_planner import planning, requests
from tightship_platform.captures.artifact_store import open_artifacts
from tightship_platform.database.per_process import process_database
from tightship_platform.settings import load_settings
from tightship_platform.tasks.app import send
from tightship_platform.tasks.quietly import quietly
from tightship_platform.units import now_ns, plural

log = logging.getLogger(__name__)

GRACE_S = 60
"""For the refusal to be written, after the time limit; then the process is killed and the sweep finds the row."""


@shared_task(  # type: ignore[untyped-decorator]  # celery carries no types
    name=requests.PLAN_OFFLOAD, soft_time_limit=planning.TIME_LIMIT_S, time_limit=planning.TIME_LIMIT_S + GRACE_S
)
@quietly
def plan_offload(key: str) -> None:
    """Make the plan of one request, then send off those that waited for it."""
    settings, database = load_settings(), process_database()
    if planning.plan(database, open_artifacts(settings), key):
        with database.session() as session:
            due = requests.due(session, sent_before=now_ns())
        for other in due:
            send(settings, requests.PLAN_OFFLOAD, other)


@shared_task(name="tightship_analyzers.sweep_plan_requests")  # type: ignore[untyped-decorator]
@quietly
def sweep_plan_requests() -> None:
    """Take care of requests that got stuck, and of old ones."""
    settings = load_settings()
    with process_database().session() as session:
        swept = requests.sweep(session)
    for key in swept.due:
        send(settings, requests.PLAN_OFFLOAD, key)
    for key in swept.refused:
        log.warning("Planning request %s was given up: its worker died %d times", key[:8], requests.MAX_ATTEMPTS)
    if swept.removed:
        log.info("%s removed for their age", plural(swept.removed, "plan"))
