"""Tells a signal that was sent to the whole process group from one that was sent to the launcher alone.

[Note: no signal twice]
The job runs in the launcher's process group, so that the terminal, `timeout`, a batch system or a shell's job control
treat both as they would treat the job alone. A signal to the group therefore reaches the job by itself, and one to the
launcher alone has to be passed on. The terminal's are known by their origin. For those of other processes there is a
witness: a child of the launcher that does nothing but report the signals it gets. What it got too, went to the group.
On a busy machine the witness's turn may come late; what the kernel holds ready for it, it got.
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
"""How long a signal to the group may need from one of its processes to the next."""
BUSY_S = 5.0
"""How much longer a witness that has something to report is waited for, and a sender that may signal the group next."""
POLL_S = 0.01
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

    def went_to_group(self, number: int, sender: int) -> bool:
        """A signal that the launcher just got reached the rest of its process group, too.

        Waits up to WITNESS_S, and up to BUSY_S more for who has not got round to it on a busy machine: the witness, or
        the group's leader.

        :param sender: its process; 0 where that signals nobody else.
        """
        begun_s = time.monotonic()
        while True:
            # Looked at before the pipe is: what came of it until then is in there.
            state, pending = _state_of(self._pid)
            busy = state in ("R", "D") or (state in ("S", "T") and pending != 0)
            busy = busy or (sender == os.getpgrp() and _state_of(sender)[0] == "R")
            for seen in self._new_reports(POLL_S):
                self._seen[seen] = time.monotonic()
            now_s = time.monotonic()
            if now_s - self._seen.get(number, -SAME_S) < SAME_S:
                # The launcher's own share of it, should the one at hand have been sent to the launcher alone before.
                signal.sigtimedwait({number}, 0)
                return True
            if self._pid < 0 or now_s - begun_s >= WITNESS_S + (BUSY_S if busy else 0.0):
                return bool(pending >> (number - 1) & 1)

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


def _state_of(pid: int) -> tuple[str, int]:
    """A process's state, as one letter, and the bits of the signals that it has yet to handle; "" where unknown.
    Source: proc_pid_status(5)."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return "", 0
    reported = dict(line.split(":", 1) for line in lines if ":" in line)
    return reported.get("State", "").strip()[:1], int(reported.get("ShdPnd", "0"), 16)


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
