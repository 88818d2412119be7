"""Records that the server puts off again and again: they hold up no other record, and are not sent for ever.

[Note: put off, and the others pass]
"Try again" says nothing about whose fault it is. A record that is put off for HOLD_AFTER_S lets the others go first and
is tried between them. If the server takes others before each of MAX_REFUSALS further tries, the fault lies in the
record: with pauses of up to LONGEST_PAUSE_S that takes about an hour of a server that works. While it takes none, no
record is given up, however long that lasts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tightship_collectors.delivery.pause import Pause

HOLD_AFTER_S = 60.0
LONGEST_PAUSE_S = 300.0
MAX_REFUSALS = 20
FORGOTTEN_AFTER_S = 7200.0
MOST_HELD = 100
"""Records held back at once; beyond them the rest waits in order."""


@dataclass(slots=True)
class _Record:
    first_s: float
    pause: Pause = field(default_factory=lambda: Pause(LONGEST_PAUSE_S))
    is_held: bool = False
    others_pass: bool = False
    """The server took another record since this one was tried last."""
    refusals: int = 0


class HeldBack:
    """See [Note: put off, and the others pass]. For one thread; times are monotonic."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def waiting(self) -> set[str]:
        """Records that are not to be tried now."""
        now_s = time.monotonic()
        return {name for name, record in self._records.items() if record.is_held and now_s < record.pause.until_s}

    def put_off(self, name: str) -> bool:
        """The server answered "try again", or not in time. True: the others go on meanwhile."""
        now_s = time.monotonic()
        record = self._records.setdefault(name, _Record(now_s))
        if not record.is_held:
            if now_s - record.first_s < HOLD_AFTER_S or not self._has_room(now_s):
                return False
            record.is_held = True
        record.refusals += record.others_pass
        record.others_pass = False
        record.pause.failed()
        return True

    def is_hopeless(self, name: str) -> bool:
        """Whether the record is to be set aside: others were taken before each of its last MAX_REFUSALS tries."""
        return name in self._records and self._records[name].refusals >= MAX_REFUSALS

    def taken(self, name: str) -> None:
        """The server took this record."""
        self.forget(name)
        for record in self._records.values():
            record.others_pass = True

    def try_again(self) -> None:
        """The server is back: it was no fault of the records."""
        for record in self._records.values():
            record.pause.succeeded()

    def forget(self, name: str) -> None:
        """The record is out of the way."""
        self._records.pop(name, None)

    def _has_room(self, now_s: float) -> bool:
        if len(self._records) > MOST_HELD:
            # What the spool has dropped meanwhile was not tried again for long.
            tried_s = now_s - FORGOTTEN_AFTER_S
            self._records = {
                name: record
                for name, record in self._records.items()
                if max(record.first_s, record.pause.until_s) > tried_s
            }
        return len(self._records) <= MOST_HELD
