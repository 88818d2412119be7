"""What the computation waited for, by cause.

[Note: stalls] Where work is done when it was issued, a wait of the host is a wait of the computation. On a GPU it is
not: the host runs ahead, waits while the device still has work, and gives the device waits of its own, which take the
host no time. There two timing events stand around each wait, and what passes on the device between them is the stall.
They can only be read once the device has come to them, so a step's figures hold the stalls of the step before it.
"""

from __future__ import annotations

from typing import Any

from tightship_offload.backends.base import COMPUTE, Backend, Mark
from tightship_offload.runtime.stats import OffloadStats


class Stalls:
    """Of one engine; used by the thread that computes."""

    def __init__(self, backend: Backend, stats: OffloadStats) -> None:
        self._backend = backend
        self._stats = stats
        self._now: list[tuple[str, Any, Any]] = []
        self._before: list[tuple[str, Any, Any]] = []
        """Of the step that is over."""

    def reach(self, cause: str, mark: Mark, *, on_host: bool) -> None:
        """As `Backend.reach` for the computation; the wait counts for a cause.

        :param cause: name of a field of `OffloadStats`, in nanoseconds.
        """
        begun = self._backend.record_timed()
        waited_ns = self._backend.reach(mark, COMPUTE, on_host=on_host)
        if begun is None:
            self._count(cause, waited_ns)
        else:
            self._now.append((cause, begun, self._backend.record_timed()))

    def end_step(self) -> None:
        """Count what the device has come to of the step before. See [Note: stalls]."""
        late = []
        for cause, begun, ended in self._before:
            elapsed_ns = self._backend.elapsed_ns(begun, ended)
            if elapsed_ns is None:
                late.append((cause, begun, ended))
            else:
                self._count(cause, elapsed_ns)
        self._before, self._now = late + self._now, []

    def _count(self, cause: str, waited_ns: int) -> None:
        setattr(self._stats, cause, getattr(self._stats, cause) + waited_ns)
