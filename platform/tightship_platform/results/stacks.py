"""The stacks that a run's agent last brought."""

from __future__ import annotations

from dataclasses import dataclass

from tightship_platform.wire import ProcessFrames


@dataclass(frozen=True, kw_only=True)
class StackDump:
    """What the processes of a run were at."""

    run: str
    """Its id."""
    host: str | None
    """Host whose agent is asked; null: nobody reported it."""
    requested_by: str
    """Who asked last."""
    requested_ns: int
    """When that was."""
    taken_ns: int | None
    """When the last answer came; before `requested_ns` while another is awaited. Null: none ever came."""
    processes: list[ProcessFrames]
    """Ranks first; of the last answer."""

    @property
    def is_awaited(self) -> bool:
        """Its agent has not answered the last request."""
        return self.taken_ns is None or self.taken_ns < self.requested_ns
