"""What-if figures of a pipeline-parallel job, as `tightship stragglers --json` prints them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StragglerStep:
    """One step."""

    step: int
    """Number of the step."""
    measured_ns: float
    """As recorded."""
    actual_ns: float
    """The unchanged replay."""
    ideal_ns: float
    """The replay without stragglers."""
    slowdown: float
    """Actual over ideal."""


@dataclass(frozen=True, kw_only=True)
class StragglerWorker:
    """One rank of the data-parallel × pipeline grid."""

    rank: int
    """Global rank."""
    dp_rank: int
    """Data-parallel rank."""
    stage: int
    """Pipeline stage."""


@dataclass(frozen=True, kw_only=True)
class StragglerRow:
    """One data-parallel rank, stage, kind of operation or worker."""

    key: int | str | StragglerWorker
    """Which one."""
    slowdown: float
    """With only its measured costs; 1: no slowdown comes from here."""
    saving_ns: float | None
    """Mean ns per step that its repair alone gives back; null for a worker that was not replayed."""


@dataclass(frozen=True, kw_only=True)
class StragglerShare:
    """How much of the difference between actual and ideal a set of operations explains; mean ns per step."""

    repaired_ns: float
    """With this set ideal and the rest measured."""
    alone_ns: float
    """With this set measured and the rest ideal."""
    removed_frac: float | None
    """Share of the difference that goes with its repair; null where there is no difference."""
    added_frac: float | None
    """Share of the difference that it makes alone; null where there is no difference."""


@dataclass(frozen=True, kw_only=True)
class ErrorFrac:
    """How far the unchanged replay is from the measured steps."""

    mean: float
    """Over the steps."""
    max: float
    """The worst step."""


@dataclass(frozen=True, kw_only=True)
class StragglerReport:
    """What slows a job down; times are mean ns per step."""

    slowdown: float
    """Actual over ideal."""
    launch_slowdown: float
    """Measured over actual: operations start later than they could."""
    measured_ns: float
    """As recorded."""
    actual_ns: float
    """The unchanged replay."""
    ideal_ns: float
    """The replay without stragglers."""
    steps: list[StragglerStep]
    """Each step."""
    dp_ranks: list[StragglerRow]
    """The greatest slowdown first."""
    stages: list[StragglerRow]
    """The greatest slowdown first."""
    op_types: list[StragglerRow]
    """The greatest slowdown first."""
    workers: list[StragglerRow]
    """With `--workers` replayed one by one, else estimated."""
    worst_workers: StragglerShare
    """The worst 3 % of workers."""
    last_stage: StragglerShare
    """The last stage."""
    simulation_error_frac: ErrorFrac
    """Of the replay."""
    warnings: list[str]
    """About the table, one line each."""
