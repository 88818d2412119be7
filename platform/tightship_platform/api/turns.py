"""The long way of deliveries, a few at a time: the others wait in turn, without a thread, and not for ever.

A host's first deliveries, and those that say something new, take a thread and many statements each. When a fleet begins
at once, or the server was away, they come by the thousand: threads that get in each other's way would take many times
as long over all of them, and answer so late that they are sent again.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter, deque

from tightship_platform.errors import AskedToWait

AT_ONCE = 16
"""Deliveries that are worked on at once: fewer than there are connections to the database."""
OF_ONE_CALLER = 12
"""Of these, those of one caller: however much it sends, the others go on."""
WAIT_S = 20.0
"""Longest wait for a turn: less than the time for which clients wait for an answer."""
WAITING_BYTES = 256 * 1024**2
"""Bodies that wait, together; one that would be too many is sent away at once."""


class Turns:
    """Those of one server process. For its event loop's thread."""

    def __init__(self) -> None:
        self._at_work: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By caller, in the order of their turns."""
        self._waiting_bytes = 0

    @property
    def waiting(self) -> int:
        """Deliveries that wait."""
        return sum(map(len, self._waiting.values()))

    async def begin(self, caller: str, size: int) -> None:
        """Wait for a turn, which lasts until `end`.

        :param size: of the body that waits with it, in bytes.
        :raises AskedToWait: too much waits, or this has waited for too long; it has no turn.
        """
        if self._waiting_bytes + size > WAITING_BYTES:
            raise later()
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        self._waiting_bytes += size
        self._give()
        try:
            async with asyncio.timeout(WAIT_S):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # it came just too late
                self.end(caller)
            if isinstance(error, TimeoutError):
                raise later() from error
            raise
        finally:
            self._waiting_bytes -= size

    def end(self, caller: str) -> None:
        """The turn is over; whoever is next begins."""
        self._at_work[caller] -= 1
        if not self._at_work[caller]:
            del self._at_work[caller]
        self._give()

    def _give(self) -> None:
        while self._at_work.total() < AT_ONCE:
            caller = next((one for one in self._waiting if self._at_work[one] < OF_ONE_CALLER), None)
            if caller is None:
                return
            line = self._waiting.pop(caller)
            turn = line.popleft()
            if line:
                self._waiting[caller] = line  # behind the others
            if not turn.done():  # else it was given up
                self._at_work[caller] += 1
                turn.set_result(None)


def later() -> AskedToWait:
    """The answer to a delivery that has no place now: some come back earlier than others."""
    wait_s = WAIT_S * random.uniform(0.25, 0.75)  # noqa: S311 (no secret)
    return AskedToWait(
        f"Too many deliveries wait to be stored, and this one was not; send it again in {math.ceil(wait_s)} s", wait_s
    )
