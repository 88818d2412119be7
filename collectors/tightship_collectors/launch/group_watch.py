"""Tells a signal that was sent to the whole process group from one that was sent to the launcher alone.

[Note: no signal twice]
The job runs in the launcher's process group, so that the terminal, `timeout`, a batch system or a shell's job control
treat both as they would treat the job alone. A signal to the group therefore reaches the job by itself, and one to the
launcher alone has to be passed on. The terminal's are told by their origin. For those of other processes there is a
witness: a child of the launcher that does nothing but report the signals it gets. What it got too, went to the group.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable
from pathlib import Path

WITNESS_S = 0.05
"""How long a report of the witness may take."""
SAME_S = 0.2
"""A signal this soon after one of its kind to the group is the same: `timeout` signals its child, then the group."""


class GroupWatch:
    """A witness in this process's group. To be made while there is one thread only, with the signals blocked."""

    def __init__(self, signals: Iterable[signal.Signals]) -> None:
        self._seen: dict[int, float] = {}
        self._reports, reports = os.pipe()
        lifeline, self._lifeline = os.pipe()
        try:
            self._pid = os.fork()
        except OSError:  # no process to spare: then every signal is passed on
            self._pid = -1
        if self._pid == 0:
            _witness(lifeline, reports, signals)
        os.close(reports)
        os.close(lifeline)

    def went_to_group(self, number: int) -> bool:
        """A signal that the launcher just got reached the rest of its process group, too. Waits up to WITNESS_S."""
        give_up_s = time.monotonic() + WITNESS_S
        while True:
            for seen in self._new_reports(max(0.0, give_up_s - time.monotonic())):
                self._seen[seen] = time.monotonic()
            now_s = time.monotonic()
            if now_s - self._seen.get(number, -SAME_S) < SAME_S:
                return True
            if now_s >= give_up_s or self._pid < 0:
                return False

    def close(self) -> None:
        """Dismiss the witness."""
        os.close(self._lifeline)
        os.close(self._reports)
        if self._pid > 0:
            os.kill(self._pid, signal.SIGKILL)  # it may have been stopped, and would not notice the closed pipe
            os.waitpid(self._pid, 0)

    def _new_reports(self, timeout_s: float) -> bytes:
        ready, _, _ = select.select([self._reports], [], [], timeout_s)
        return os.read(self._reports, 512) if ready else b""


def _witness(lifeline: int, reports: int, signals: Iterable[signal.Signals]) -> None:
    """The child: report signals until the launcher is gone. Never returns."""
    try:
        # Everything else that the launcher has open would stay open with us: pipes that somebody reads to their end.
        for entry in list(Path("/proc/self/fd").iterdir()):
            if int(entry.name) not in (lifeline, reports):
                with contextlib.suppress(OSError):
                    os.close(int(entry.name))
        os.set_blocking(reports, False)
        signal.set_wakeup_fd(reports, warn_on_full_buffer=False)
        for number in signals:
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_bytes(b"tightship-watch")
        os.read(lifeline, 1)
    finally:
        os._exit(0)
