"""Accounts of whole fleets, and the fleets that were imported."""

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


@dataclass(frozen=True, kw_only=True)
class AccountGroup:
    """Device time of some runs. Their buckets sum to `device_ns` exactly; `busy_ns + idle_ns + unmeasured_ns`, too."""

    key: str
    """Name of the fleet, team or workflow, a state, or a run's id; `(removed)` and `(no team)` are what they say."""
    runs: int
    """Runs with an account."""
    devices: int | None
    """Devices that they held; null: not known, as schedulers do not say which, or the runs are gone."""
    device_ns: int
    """Device time that they held."""
    busy_ns: int | None
    """Device time in which a device worked, by its samples; null where nothing measured activity."""
    idle_ns: int | None
    """Device time in which a device did nothing, by its samples; null where nothing measured activity."""
    unmeasured_ns: int
    """Device time for which there are no samples of activity."""
    buckets: dict[str, int]
    """Device time in nanoseconds by bucket."""


@dataclass(frozen=True, kw_only=True)
class ImportedFleet:
    """The imported history of a fleet."""

    fleet: str
    """Its name."""
    format: str
    """What it was read from, such as `slurm-sacct`."""
    team: str | None
    """Team of the token that imported it; null: none."""
    assumptions: list[str]
    """What its figures take for granted, a sentence each."""
    refused: dict[str, int]
    """What is wrong with rows that were left out → how many."""
    rows: int
    """Rows that were read."""
    runs: int
    """Runs that were imported."""
    since_ns: int | None
    """When the first of them began; null: there is none."""
    until_ns: int | None
    """When the last of them ended; null: there is none."""
    device_ns: int
    """Device time that they held, as far as it is accounted for."""
    unaccounted_runs: int
    """Runs whose account is still to come; nothing of them is counted in the figures here."""
    busy_ns: int | None
    """Device time in which a device worked, by its samples; null where nothing measured activity."""
    idle_ns: int | None
    """Device time in which a device did nothing, by its samples; null where nothing measured activity."""
    unmeasured_ns: int
    """Device time for which there are no samples of activity."""
    long_idle_ns: int | None
    """Device time in stretches of ten minutes or more below 5 % activity; null where nothing measured activity."""
    imported_ns: int | None
    """When the whole source had been read; null: the import was ended before."""
