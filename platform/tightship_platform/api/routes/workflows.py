"""Workflows, and the schedules by which their runs are captured."""

from __future__ import annotations

from dataclasses import dataclass, field

from tightship_platform import captures
from tightship_platform.api.auth import require
from tightship_platform.api.filters import Wanted
from tightship_platform.api.insisting import require_own_risk
from tightship_platform.api.reply import Answer, Db
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.database.audit import audit
from tightship_platform.queries import workflows
from tightship_platform.results.workflow import Workflow, WorkflowSchedule
from tightship_platform.vocabulary import Scope
from tightship_platform.wire import CaptureParams

router = scoped_router("workflows")


@dataclass(kw_only=True)
class Schedule:
    """Capture every live run of the workflow once in `every_ns`; null: no longer."""

    every_ns: int | None
    params: CaptureParams = field(default_factory=CaptureParams)


@router.get("/workflows", dependencies=[needs(Scope.READ)], response_model=list[Workflow])
def list_workflows(database: Db, filters: Wanted, after: str | None = None, limit: int = 1000) -> Answer:
    """Workflows with their newest runs and capture schedule; of those after the workflow `after`, the last one of the
    page before. `since` and `until` are about their newest run, `state` about any."""
    with database.session() as session:
        return Answer(workflows.list_workflows(session, filters, after=after, limit=limit))


@router.post("/workflows/{name:path}/schedule", dependencies=[needs(Scope.CAPTURE)], response_model=WorkflowSchedule)
def set_schedule(name: str, body: Schedule, database: Db) -> Answer:
    """Set or end the capture schedule of a workflow; answers the schedule that is in force. Only a token of the
    workflow's team, or an administrator's, may `insist`."""
    with database.session() as session:
        schedule = captures.set_schedule(session, name, body.every_ns, body.params)
        require_own_risk(body.params, f"all runs of {name[:200]!r}")
        audit(session, require(Scope.CAPTURE).name, "workflow.schedule", name, every_ns=body.every_ns)
        in_force = None if schedule is None else workflows.public_schedule(schedule)
    return Answer(WorkflowSchedule(workflow=name, schedule=in_force))
