"""Pauses between tries that fail."""

from __future__ import annotations

import random
import time

FIRST_PAUSE_S = 0.5


class Pause:
    """Growing pauses: 0.5 s, 1 s, 2 s … up to `longest_s`, each shortened by a random part of up to half."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._failures = 0
        self.until_s = 0.0
        """Monotonic time before which nothing is tried."""

    def failed(self, at_least_s: float = 0.0) -> None:
        """Wait longer than the last time, and as long as the server asks, or up to half as long again: it may have
        asked many at once."""
        whole = min(self._longest_s, FIRST_PAUSE_S * 2 ** min(self._failures, 10))
        self._failures += 1
        share = random.uniform(0.5, 1.0)  # noqa: S311 (no secret)
        self.until_s = time.monotonic() + max(whole * share, at_least_s * (0.5 + share))

    def succeeded(self) -> None:
        """Try again at once."""
        self._failures, self.until_s = 0, 0.0
