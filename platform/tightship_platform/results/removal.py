"""What a deletion did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Removal:
    """Runs that somebody deleted."""

    kind: str
    """`run`, `workflow`, `user` or `team`."""
    name: str
    """The run's id, or the name of whose runs they were."""
    runs: int
    """Runs that were deleted, with all that is known of them."""
    left: int
    """Runs of these of which rows and files are still being removed, by the worker."""
