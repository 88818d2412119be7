"""Which modules hold tasks, and how often which of them are started: every package says so itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points

GROUP = "tightship.tasks"
"""Entry points of `TaskModule`s. They are imported by whoever sends tasks, so they import no tasks themselves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskModule:
    """A module with Celery tasks, which the worker imports."""

    module: str
    periods_s: Mapping[str, float] = field(default_factory=dict)
    """Periodic task → seconds between two starts."""


def registered() -> list[TaskModule]:
    """Those of all installed packages, by name.

    :raises TypeError: an entry point is something else.
    """
    found = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        known = entry.load()
        if not isinstance(known, TaskModule):
            raise TypeError(f"entry point {entry.value} is no TaskModule")
        found.append(known)
    return found


def periods_s() -> dict[str, float]:
    """All periodic tasks → seconds between two starts."""
    return {task: period for known in registered() for task, period in known.periods_s.items()}
