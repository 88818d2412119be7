"""The account of the whole fleet over a period."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class FleetSlice:
    """Device time of one slice of the period."""

    time_ns: int
    """Start of the slice."""
    buckets: dict[str, int]
    """Device time in nanoseconds by bucket."""


@dataclass(frozen=True, kw_only=True)
class FleetAccount:
    """Device time of a period by bucket: in all, by team, by workflow and over time. Every part sums to the whole."""

    since_ns: int
    """Start of the period."""
    until_ns: int
    """End of the period."""
    device_ns: int
    """Device time that runs held in the period."""
    runs: int
    """Runs with an account that lie in the period."""
    unaccounted_runs: int
    """Runs of the period whose account is still to come; nothing of them is counted here."""
    buckets: dict[str, int]
    """Device time in nanoseconds by bucket."""
    by_team: dict[str, dict[str, int]]
    """Team → bucket → device time, the largest team first; `(no team)` for runs without one."""
    by_workflow: dict[str, dict[str, int]]
    """Workflow → bucket → device time, the largest workflow first."""
    over_time: list[FleetSlice]
    """Slices in which a run held a device."""
    slice_ns: int
    """Width of a slice."""
    simulated: bool
    """Some of it was made up by a simulator."""
