"""The data model: one ORM class per concept of the vocabulary."""

from tightship_platform.models.access import Audit, Token
from tightship_platform.models.base import Base
from tightship_platform.models.captures import Capture, CaptureSchedule, Installation, Trace
from tightship_platform.models.inventory import Device, Host
from tightship_platform.models.judgement import Action, Finding, Opportunity, Plan, Verification
from tightship_platform.models.metrics import HostSample, RemovedDay, Rollup, RunSample, Sample, StepStat
from tightship_platform.models.work import Allocation, Run, RunAccount, Workflow

__all__ = [
    "Action",
    "Allocation",
    "Audit",
    "Base",
    "Capture",
    "CaptureSchedule",
    "Device",
    "Finding",
    "Host",
    "HostSample",
    "Installation",
    "Opportunity",
    "Plan",
    "RemovedDay",
    "Rollup",
    "Run",
    "RunAccount",
    "RunSample",
    "Sample",
    "StepStat",
    "Token",
    "Trace",
    "Verification",
    "Workflow",
]
