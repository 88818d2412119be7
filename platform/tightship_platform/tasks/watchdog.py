"""Ends a worker that works no more although it could, so that whoever runs it starts it again.

The libraries between us and the broker have lost a connection, or count of it, without a word. Such a worker still
leaves its signs of life. So it has to show more: while the broker answers, its loop goes on, its schedule goes on, and
a process that has no task takes one that waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger(__name__)

LOOK_S = 15.0
"""Between two looks."""
LOOKS = 4
"""So many looks in a row have to find a fault. Time that this process was stopped for is none of them."""


@dataclass(frozen=True, kw_only=True)
class Signs:
    """What a consumer shows of itself at one moment."""

    ticks: int
    """How often its loop came to our timer."""
    taken: int
    """Tasks that it has taken so far."""
    holds: int
    """Tasks that it has now."""
    beat_s: float | None
    """When the schedule that it runs last went on; None: it runs none."""


class Watchdog:
    """Looks after one consumer from a separate thread.

    :param signs: what the consumer shows now.
    :param waiting: how many tasks wait in its queues; None: the broker does not answer.
    :param give_up: ends the consumer; called once, with what is wrong.
    """

    def __init__(
        self, signs: Callable[[], Signs], waiting: Callable[[], int | None], give_up: Callable[[str], None]
    ) -> None:
        self._signs, self._waiting, self._give_up = signs, waiting, give_up
        self._over = threading.Event()

    def start(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._work, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Look no more: the consumer ends by itself."""
        self._over.set()

    def _work(self) -> None:
        before, faults = self._signs(), 0
        while not self._over.wait(LOOK_S):
            now = self._signs()
            fault = self._fault(before, now)
            before, faults = now, faults + 1 if fault else 0
            if fault and faults >= LOOKS:
                self._give_up(f"{fault} for {LOOKS * LOOK_S:.0f} s, although the broker answers")
                return

    def _fault(self, before: Signs, now: Signs) -> str | None:
        waiting = self._waiting()
        if waiting is None:
            return None
        if now.ticks == before.ticks:
            return "The worker's loop has stood still"
        if now.beat_s is not None and now.beat_s == before.beat_s:
            return "The schedule has stood still"
        if waiting and now.taken == before.taken and not now.holds and not before.holds:
            return f"The worker has taken none of {waiting} waiting tasks"
        return None
