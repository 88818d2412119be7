"""The data model: one ORM class per concept of the vocabulary."""

from tightship_platform.database.models.access import Audit, BrowserSession, Token, UserTeam
from tightship_platform.database.models.base import Base
from tightship_platform.database.models.captures import (
    Capture,
    CaptureAnalysis,
    CaptureSchedule,
    Installation,
    SecondPass,
    StackDump,
    StoredPart,
    Trace,
)
from tightship_platform.database.models.findings import (
    Action,
    Finding,
    Opportunity,
    OpportunityAction,
    Plan,
    RankedWorkflow,
    Verification,
)
from tightship_platform.database.models.fleets import Fleet, FleetPart, RunActivity
from tightship_platform.database.models.inventory import Device, Host
from tightship_platform.database.models.metrics import (
    DirtyHour,
    HostSample,
    RemovedDay,
    RolledUp,
    Rollup,
    RunSample,
    Sample,
    StepStat,
)
from tightship_platform.database.models.plan_requests import PlanRequest
from tightship_platform.database.models.runs import (
    Allocation,
    PastAccount,
    RemovedRun,
    Run,
    RunAccount,
    UnallocatedDay,
    UnallocatedHour,
    Workflow,
)

__all__ = [
    "Action",
    "Allocation",
    "Audit",
    "Base",
    "BrowserSession",
    "Capture",
    "CaptureAnalysis",
    "CaptureSchedule",
    "Device",
    "DirtyHour",
    "Finding",
    "Fleet",
    "FleetPart",
    "Host",
    "HostSample",
    "Installation",
    "Opportunity",
    "OpportunityAction",
    "PastAccount",
    "Plan",
    "PlanRequest",
    "RankedWorkflow",
    "RemovedDay",
    "RemovedRun",
    "RolledUp",
    "Rollup",
    "Run",
    "RunAccount",
    "RunActivity",
    "RunSample",
    "Sample",
    "SecondPass",
    "StackDump",
    "StepStat",
    "StoredPart",
    "Token",
    "Trace",
    "UnallocatedDay",
    "UnallocatedHour",
    "UserTeam",
    "Verification",
    "Workflow",
]
