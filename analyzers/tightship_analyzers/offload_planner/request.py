"""What is asked of the planner: a model, and the machine to plan for. Light, for pages import it."""

from __future__ import annotations

from dataclasses import dataclass

from tightship_analyzers.offload_planner.sources import Source

CPU = "cpu"
MOST_PROFILE_BYTES = 256 * 1024
"""A profile of 500 layers has 64 KiB."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A model, from a workflow's traces or a profile, and the machine to plan for. Null: as the model's own machine."""

    sources: tuple[Source, ...] = ()
    """Traces to try, with `keys`."""
    keys: tuple[str, ...] = ()
    """Of the traces in the artifact store."""
    artifacts_url: str = ""
    profile: str | None = None
    """The text of a profile, where there is no trace; nothing of it has been checked."""
    recorded_on: str | None = None
    """Device of the traces: its name, or `cpu`."""
    recorded_bytes: int | None = None
    """Memory of that device, as it reported it."""
    device: str | None = None
    """Device to plan for, if not that one."""
    host_bytes: int | None = None
    cores: int | None = None
    budget_bytes: int | None = None
    """Most device memory to use."""
