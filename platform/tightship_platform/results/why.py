"""Why a run makes no steps, or how it died, as `tightship why RUN --json` prints it."""

from __future__ import annotations

from dataclasses import dataclass

from tightship_platform.results.hang import HangReport


@dataclass(frozen=True, kw_only=True)
class ProcessStack:
    """One process of a live run, and what its main thread is at."""

    rank: int | None
    """Global rank; null: it is no rank."""
    role: str
    """`rank`, `worker` (of a rank's data loader) or `other`."""
    pid: int
    """Process id on its host."""
    steps: int | None
    """Optimizer steps so far; null: they are not counted."""
    last_step_ns: int | None
    """When it made the last one; null: none."""
    collective: str | None
    """Collective of torch.distributed that it is in, such as `all_reduce`; null: none by its Python stack."""
    place: str | None
    """Innermost frame outside of torch and Python's own library, `file:line function`; null: there is none."""
    runs: bool | None
    """Its main thread computes; false: it waits. Null: not known."""
    stack: list[str]
    """Frames of the main thread, the innermost first; empty where they cannot be had."""
    reason: str | None
    """Why they cannot be had."""


@dataclass(frozen=True, kw_only=True)
class RunWhy:
    """A run that makes no steps, or has ended."""

    run: str
    """Its id."""
    state: str
    """`running`, `finished`, `failed` or `lost`."""
    verdict: str
    """One sentence: what it does, or how it ended."""
    cause: str
    """What of the cause is known."""
    processes: list[ProcessStack]
    """Of a live run, ranks first; empty where it has ended."""


@dataclass(frozen=True, kw_only=True)
class Why:
    """Of a run, or of the dumps of a job's flight recorders."""

    run: RunWhy | None
    """Where a run was asked about; else null."""
    dumps: HangReport | None
    """Where dumps were given; else null."""
