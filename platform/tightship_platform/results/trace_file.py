"""Trace files, as `tightship trace list` prints them."""

from __future__ import annotations

from dataclasses import dataclass

from tightship_platform.results.capture import CapturedRank

SECOND_PASS = "second_pass"  # noqa: S105
"""Folder beside traces for the second recordings of the same ranks, under the same names: both are judged as one."""


@dataclass(frozen=True, kw_only=True)
class TraceFile(CapturedRank):
    """The trace of one rank, and what it is of."""

    capture: str
    """Id of the capture that it belongs to."""
    run: str
    """Id of the run."""
    workflow: str
    """Workflow of the run."""
    requested_ns: int
    """When the capture was requested."""
