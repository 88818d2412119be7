"""Notices when the wall clock is set: ages that were computed from it mean nothing for a while."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tightship_platform.units import NS_PER_S, now_ns

log = logging.getLogger(__name__)

STEP_NS = 10 * NS_PER_S
"""A larger difference between the wall clock and the one that nobody sets is a step, between two looks."""


class SteadyClock:
    """How long the wall clock has kept pace with the monotonic clock, which stands still in suspension."""

    def __init__(self, wall: Callable[[], int] = now_ns, monotonic: Callable[[], int] = time.monotonic_ns) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._since_ns = monotonic()
        self._ahead_ns = wall() - self._since_ns

    def steady_ns(self) -> int:
        """Nanoseconds since this clock was made, or since a look (at every call) that showed a step."""
        mono_ns = self._monotonic()
        ahead_ns = self._wall() - mono_ns
        if abs(ahead_ns - self._ahead_ns) > STEP_NS:
            log.info("The clock of this host was set by %+d s", (ahead_ns - self._ahead_ns) // NS_PER_S)
            self._since_ns = mono_ns
        self._ahead_ns = ahead_ns
        return mono_ns - self._since_ns
