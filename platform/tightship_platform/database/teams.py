"""What of the database a request may see: only its team's, where its token has a team.

[Note: one place] Every SELECT through the ORM, whoever wrote it, for a page, the API, a search or a file, gets the
conditions of `_OF_RUNS` and `_OF_WORKFLOWS` added while a team is set. What belongs to another team is not there: it
cannot be named, counted or asked for. Ingest sees all, as it has to see whose a run is before it refuses a record.
"""

from __future__ import annotations

from contextvars import ContextVar
from functools import cache
from typing import Any

from sqlalchemy import Select, event, false, select
from sqlalchemy.orm import ORMExecuteState, Session, sessionmaker, with_loader_criteria

from tightship_platform.database import models

_OF_RUNS: tuple[Any, ...] = (
    models.Allocation.run_id,
    models.Action.run_id,
    models.Capture.run_id,
    models.Finding.run_id,
    models.RunAccount.run_id,
    models.RunActivity.run_id,
    models.RunSample.run_id,
    models.StackDump.run_id,
    models.StepStat.run_id,
    models.Trace.run_id,
)
_OF_WORKFLOWS: tuple[Any, ...] = (
    models.CaptureSchedule.workflow_id,
    models.Opportunity.workflow_id,
    models.OpportunityAction.workflow_id,
    models.Plan.workflow_id,
    models.RankedWorkflow.workflow_id,
    models.Workflow.id,
)
OF_OTHERS = frozenset(
    {
        *("SecondPass", "StoredPart", "CaptureAnalysis", "Verification", "PastAccount", "Fleet", "FleetPart"),
        "UnallocatedDay",
    }
)
"""Models that are a team's by the row that they name, or by a name; or that are of no team, and seen by none."""
OF_ALL_TEAMS = frozenset(
    {
        *("Audit", "BrowserSession", "Installation", "Token", "UserTeam"),
        *("Device", "DirtyHour", "Host", "HostSample", "RemovedDay", "RolledUp", "Rollup", "Sample", "UnallocatedHour"),
        *("PlanRequest", "RemovedRun"),
    }
)
"""Models without a team: hosts are shared, the rest is an administrator's or says nothing of a run."""

_team: ContextVar[str | None] = ContextVar("tightship_team", default=None)


def see_team(team: str | None) -> None:
    """From here on, sessions of this context (request, task, thread-pool call) see this team's rows; None: all rows."""
    _team.set(team)


def seen_team() -> str | None:
    """The team whose rows sessions of this context see; None: all rows."""
    return _team.get()


def filter_by_team(sessions: sessionmaker[Session]) -> None:
    """Have the sessions see what `see_team` says; see [Note: one place]."""

    @event.listens_for(sessions, "do_orm_execute")
    def _filter(execution: ORMExecuteState) -> None:
        team = _team.get()
        if team is not None and execution.is_select and not execution.is_column_load:
            execution.statement = execution.statement.options(*_criteria(team))


@cache
def _criteria(team: str) -> tuple[Any, ...]:
    runs = _runs(team, models.Run.id)
    workflows = _runs(team, models.Run.workflow_id)
    traces, captures = (
        select(made.c.id).where(made.c.run_id.in_(runs)) for made in (models.Trace.__table__, models.Capture.__table__)
    )
    actions = select(models.Action.__table__.c.id).where(models.Action.__table__.c.run_id.in_(runs))
    fleets = select(models.Fleet.__table__.c.id).where(models.Fleet.__table__.c.team == team)
    wanted: list[tuple[type[models.Base], Any]] = [(models.Run, models.Run.team == team)]
    wanted += [(column.class_, column.in_(runs)) for column in _OF_RUNS]
    wanted += [(column.class_, column.in_(workflows)) for column in _OF_WORKFLOWS]
    wanted += [
        (models.SecondPass, models.SecondPass.trace_id.in_(traces)),
        (models.StoredPart, models.StoredPart.trace_id.in_(traces)),
        (models.CaptureAnalysis, models.CaptureAnalysis.capture_id.in_(captures)),
        (models.Verification, models.Verification.action_id.in_(actions)),
        (models.PastAccount, models.PastAccount.run_team == team),
        (models.UnallocatedDay, false()),
        (models.Fleet, models.Fleet.team == team),
        (models.FleetPart, models.FleetPart.fleet_id.in_(fleets)),
    ]
    return tuple(with_loader_criteria(model, condition, include_aliases=True) for model, condition in wanted)


def _runs(team: str, column: Any) -> Select[Any]:
    """A column of the team's runs. Of the table, not the class: conditions are not conditioned again."""
    table = models.Run.__table__
    return select(table.c[column.key]).where(table.c.team == team)
