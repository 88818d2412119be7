"""How many requests a token and a host may make: one that makes more waits, and nobody else does.

Each has a bucket of requests that fills at its rate and holds BURST_S of it. Each server process has its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tightship_platform.errors import AskedToWait

BURST_S = 10.0
MAX_BUCKETS = 50_000


class TooManyRequests(AskedToWait):
    """The caller makes more requests than it may."""

    http_status = 429

    def __init__(self, whose: str, rate: int, setting: str, wait_s: float) -> None:
        super().__init__(
            f"{whose} makes more than {rate} requests a second; wait {max(1, round(wait_s))} s, "
            f"or have the server's {setting} raised",
            wait_s,
        )


class Rates:
    """The buckets of one kind.

    :param rate: requests a second; 0: any number.
    """

    def __init__(self, rate: int, setting: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self._setting = setting
        self._clock_s = clock_s
        self._most = rate * BURST_S
        self._buckets: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def take(self, name: str, whose: str) -> None:
        """Count a request.

        :raises TooManyRequests: there were too many.
        """
        if not self.rate:
            return
        now_s = self._clock_s()
        with self._lock:
            left, since_s = self._buckets.get(name, (self._most, now_s))
            left = min(self._most, left + (now_s - since_s) * self.rate)
            if left < 1:
                raise TooManyRequests(whose, self.rate, self._setting, (1 - left) / self.rate)
            if len(self._buckets) >= MAX_BUCKETS and name not in self._buckets:
                self._drop_full(now_s)
            self._buckets[name] = left - 1, now_s

    def _drop_full(self, now_s: float) -> None:
        """Buckets that are full say nothing."""
        kept = {
            name: (left, since_s)
            for name, (left, since_s) in self._buckets.items()
            if left + (now_s - since_s) * self.rate < self._most
        }
        self._buckets = kept if len(kept) < MAX_BUCKETS else {}
