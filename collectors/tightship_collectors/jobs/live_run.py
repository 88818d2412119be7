"""A run as this host sees it: its processes, and which of them train."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class RankView:
    """One process of a run that imported torch, as its control file tells it."""

    rank: int
    """Global rank; processes that name none are numbered from 0 in the order of their start. -1 when no rank."""
    pid: int
    guard: bool
    """The exit guard is installed: the process waits at its end for a capture in flight."""
    steps: int | None
    """Optimizer steps so far; null when the run was launched with --no-steps."""
    first_step_ns: int | None
    last_step_ns: int | None
    is_rank: bool
    """It trains. Launchers, data loader workers and other helpers that import torch are no ranks."""
    world_size: int | None = None
    exiting: bool = False
    """It has entered its exit guard: too late to arm it."""
    capture_in_flight: bool = False
    """Its control file says that an agent has a capture armed or recording in it."""


@dataclass(frozen=True, kw_only=True)
class HostRun:
    """One live run on this host."""

    run: str
    run_dir: Path
    uid: int
    """Owner of the run directory and of every process counted here."""
    pids: tuple[int, ...]
    """Every live process of the run, whether or not it imported torch."""
    ranks: tuple[RankView, ...]
    """Every process with a control file; `is_rank` says which of them train."""
    start_ns: int
    """Start of the oldest process."""
