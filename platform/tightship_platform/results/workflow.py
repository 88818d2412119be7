"""Workflows, and the schedules by which their runs are captured."""

from __future__ import annotations

from dataclasses import dataclass

from tightship_platform.wire import CaptureParams


@dataclass(frozen=True, kw_only=True)
class CaptureSchedule:
    """How often the live runs of a workflow are captured."""

    every_ns: int
    """Time between two captures of a run."""
    params: CaptureParams
    """What they record."""


@dataclass(frozen=True, kw_only=True)
class Workflow:
    """Recurring work: all runs of one name."""

    workflow: str
    """Its name."""
    team: str | None
    """Its team; null: none was given."""
    owner: str | None
    """Its owner; null: none was given."""
    labels: dict[str, str]
    """Labels of the workflow itself; runs have their own."""
    runs: int
    """Runs that are known."""
    live: int
    """Runs that are live."""
    last_start_ns: int | None
    """Start of its newest run; null: it has none."""
    schedule: CaptureSchedule | None
    """How often its live runs are captured; null: only on request."""


@dataclass(frozen=True, kw_only=True)
class WorkflowSchedule:
    """The capture schedule of a workflow that is in force."""

    workflow: str
    """Name of the workflow."""
    schedule: CaptureSchedule | None
    """How often its live runs are captured; null: only on request."""
