"""Captures: requests for one trace per rank of a run, and what came of them."""

from __future__ import annotations

from dataclasses import dataclass

from tightship_platform.wire import CaptureParams, ExpectedRank


@dataclass(frozen=True, kw_only=True)
class SecondPass:
    """The second trace of a rank: recorded without stacks and shapes, so that steps take less long."""

    bytes: int
    """Size of the file as it is stored."""
    sha256: str
    """SHA-256 of the file."""
    url: str | None
    """Path of the file on the server; null: the file was removed because of its age."""


@dataclass(frozen=True, kw_only=True)
class CapturedRank:
    """The trace of one rank."""

    rank: int
    """The rank that was recorded."""
    pid: int | None
    """Its process; null: not reported."""
    bytes: int
    """Size of the file as it is stored."""
    sha256: str
    """SHA-256 of the file."""
    url: str | None
    """Path of the file on the server; null: the file was removed because of its age."""
    trace: int
    """Id of the trace."""
    error: str | None
    """Why its analysis failed; null: it did not, or has not been tried."""
    second_pass: SecondPass | None
    """The rank's second trace; null: there is none."""


@dataclass(frozen=True, kw_only=True)
class Capture:
    """A request for one trace per rank of a run, and how far it is."""

    capture: str
    """Its id."""
    run: str
    """Id of the run."""
    workflow: str
    """Workflow of the run."""
    state: str
    """`requested`, `leased`, `armed`, `recording`, `written`, `uploaded`, `analyzed`, `failed` or `expired`."""
    reason: str | None
    """Why it failed or expired, or what it waits for; null: nothing to say."""
    requested_ns: int
    """When it was requested."""
    requested_by: str
    """`cli`, `dashboard`, `schedule`, or the name of the token."""
    stages: dict[str, int]
    """When each state was first entered: state → time."""
    attempts: int
    """How often an agent has taken it."""
    expected: list[ExpectedRank]
    """Ranks whose traces are to come; empty until the agent knows them."""
    params: CaptureParams
    """What it records."""
    ranks: list[CapturedRank]
    """Traces that have arrived, by rank."""
    latency_s: float | None
    """Seconds from the request to the last rank's first trace; null: they have not all arrived."""
    passes: int
    """Traces of each rank that are to come: 2 where recording stretched the steps too much."""
    passes_reason: str | None
    """Why it was recorded twice, or once where twice was called for; null: once, and nothing to say."""
