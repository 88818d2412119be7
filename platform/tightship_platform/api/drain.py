"""The end of a server process: load balancers hear of it first, and uploads that are under way get time.

An upload that is cut begins again with its first byte, so that a large trace would not survive a few deployments in a
row. Everything else is short, or is asked again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tightship_platform.units import plural

log = logging.getLogger(__name__)

ASKED_S = 30.0
"""Whoever asked for `/ready` within this time will ask again."""
NOTICE_S = 10.0
"""Longest time that the server goes on so that it is asked, and says no."""
_LOOK_S = 0.05


class Drain:
    """What one server process waits for when it is asked to end. Belongs to the loop's thread.

    :param limit_s: how long it may wait in all.
    """

    def __init__(self, limit_s: float) -> None:
        self.ends = False
        """It was asked to end."""
        self._limit_s = limit_s
        self._uploads = 0
        self._asked_s = -ASKED_S
        self._refused = False

    @contextmanager
    def upload(self) -> Iterator[None]:
        """An upload is under way within."""
        self._uploads += 1
        try:
            yield
        finally:
            self._uploads -= 1

    def asked(self) -> bool:
        """Somebody asks whether to send requests here. The answer."""
        self._asked_s = time.monotonic()
        self._refused = self.ends
        return not self.ends

    async def wait(self, in_a_hurry: Callable[[], bool], stop_listening: Callable[[], None]) -> bool:
        """Have balancers notice, take no more connections, and let uploads end; whether they all have.

        :param in_a_hurry: wait no longer.
        """
        begun_s = time.monotonic()
        self.ends = True
        if begun_s - self._asked_s < ASKED_S:
            notice_s = min(NOTICE_S, self._limit_s / 2)
            while not self._refused and time.monotonic() - begun_s < notice_s and not in_a_hurry():
                await asyncio.sleep(_LOOK_S)
        stop_listening()
        if self._uploads:
            log.info("Ending; %s get up to %g s", plural(self._uploads, "upload"), self._limit_s)
        while self._uploads and time.monotonic() - begun_s < self._limit_s and not in_a_hurry():
            await asyncio.sleep(_LOOK_S)
        if self._uploads:
            log.warning("%s cut off; their agents send them again", plural(self._uploads, "upload is", "uploads are"))
        return not self._uploads
