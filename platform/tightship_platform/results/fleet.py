"""Accounts of whole fleets, and the fleets that were imported."""

from __future__ import annotations

from dataclasses import dataclass

NO_TEAM = "(no team)"
"""Group of the runs whose workflow has no team."""
NOBODY = "(nobody)"
"""Group of what no run held."""


@dataclass(frozen=True, kw_only=True)
class FleetSlice:
    """Device time of one slice of the period."""

    time_ns: int
    """Start of the slice."""
    buckets: dict[str, int]
    """Device time in nanoseconds by bucket."""


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """How much of a fleet's device time became progress, as the product of three ratios, each null where a term of it
    is not known. See docs/account.md."""

    scheduling_frac: float | None
    """Device time that runs held, over that and what no run held; only of the live fleet as a whole."""
    runtime_frac: float | None
    """Device time of steps whose work was kept, over what was held."""
    program_frac: float | None
    """Device time that the FLOPs of these steps need at peak rates, over what they took. At least: FLOPs of operators
    that the traces do not tell count as none."""
    goodput_frac: float | None
    """The product of the three."""


@dataclass(frozen=True, kw_only=True)
class AccountGroup:
    """Device time of some runs. Their buckets sum to `device_ns` exactly; `busy_ns + idle_ns + unmeasured_ns`, too."""

    key: str
    """Name of the fleet, team or workflow, a state, or a run's id; `(removed)`, `(no team)` and `(nobody)`, which held
    what no run did, are what they say."""
    runs: int
    """Runs with an account that lie in the period."""
    devices: int | None
    """Devices that they held; null: not known, as schedulers do not say which, or the runs are gone."""
    device_ns: int
    """Device time that they held in the period; of the live fleet as a whole also what no run held."""
    unproductive_ns: int
    """Device time of all buckets but `productive`. Where no trace was taken that is all of it, until one says more."""
    busy_ns: int | None
    """Device time in which a device worked, by its samples; null where nothing measured activity."""
    idle_ns: int | None
    """Device time in which a device did nothing, by its samples; null where nothing measured activity."""
    unmeasured_ns: int
    """Device time for which there are no samples of activity."""
    buckets: dict[str, int]
    """Device time in nanoseconds by bucket."""
    waiting_ns: int | None = None
    """Time that they waited in a scheduler's queue, of those of which it is known; it is no device time and in no
    bucket. Null: it is known of none."""
    waiting_runs: int = 0
    """Runs of which it is known."""
    goodput: Goodput | None = None
    """How much of it became progress; null where no ratio of it is known."""


@dataclass(frozen=True, kw_only=True)
class FleetAccount:
    """Device time of a fleet in a period, by bucket: in all, by group and over time. Every part sums to the whole."""

    fleet: str
    """`live`, or the name of an imported one."""
    by: str
    """What the groups are: `fleet`, which is one, `team`, `workflow`, `state` or `run`."""
    since_ns: int
    """Start of the period."""
    until_ns: int
    """End of the period."""
    device_ns: int
    """Device time that runs held in the period; of the live fleet also what no run held."""
    unproductive_ns: int
    """Device time of all buckets but `productive`."""
    runs: int
    """Runs with an account that lie in the period."""
    unaccounted_runs: int
    """Runs of the period whose account is still to come; nothing of them is counted here."""
    buckets: dict[str, int]
    """Device time in nanoseconds by bucket."""
    groups: list[AccountGroup]
    """Those with the most unproductive time first."""
    over_time: list[FleetSlice]
    """Slices in which there is device time."""
    slice_ns: int
    """Width of a slice."""
    simulated: bool
    """Some of it was made up by a simulator."""
    waiting_ns: int | None = None
    """Time that runs waited in a scheduler's queue, of those of which it is known; it is no device time and in no
    bucket. Null: it is known of none."""
    waiting_runs: int = 0
    """Runs of which it is known."""
    goodput: Goodput | None = None
    """How much of the device time became progress; null where no ratio of it is known."""


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
