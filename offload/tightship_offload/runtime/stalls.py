"""What the computation waited for, by cause.

[Note: stalls] Where work is done when it was issued, a wait of the host is a wait of the computation. On a GPU it is
not: the host runs ahead, waits while the device still has work, and gives the device waits of its own, which take the
host no time. There two timing events stand around each wait, and what passes on the device between them is the stall.
They can only be read once the device has come to them, so a step's figures hold the stalls of the step before it. A
loop that makes no steps (an evaluation) has them read now and then, so that they do not pile up.
"""

from __future__ import annotations

from typing import Any

from tightship_offload.backends.base import COMPUTE, Backend, Mark
from tightship_offload.runtime.stats import OffloadStats

MOST = 4096
"""Waits after which a step is read before its end."""


class Stalls:
    """Of one engine; used by the thread that computes."""

    def __init__(self, backend: Backend, stats: OffloadStats) -> None:
        self._backend = backend
        self._stats = stats
        self._now: list[tuple[str, Any, Any]] = []
        """Since the last reading."""
        self._before: list[tuple[str, Any, Any]] = []
        """Before it, and not counted yet."""

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
            if len(self._now) >= MOST:
                self.read()

    def read(self) -> None:
        """Count what the device has come to of the waits before the last reading. See [Note: stalls]."""
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
