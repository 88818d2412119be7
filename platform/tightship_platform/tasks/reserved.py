"""The part of a worker that is kept for periodic tasks: a separate process, so that no analysis ever stands before a
sweep, an account or a schedule."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable

log = logging.getLogger(__name__)

_PARENT_POLL_S = 1.0
_LOOK_S = 0.05


def follow_parent() -> None:
    """End this process soon after its parent is gone: after kill -9 nobody else would.

    A thread that looks rather than PR_SET_PDEATHSIG, which fires already when the *thread* that forked ends.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_S)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="follow-parent", daemon=True).start()


class Reserved:
    """A fork of this process that runs `work` and ends with it, or with its parent.

    Fork it before this process has threads or connections. What was imported until then is shared.
    """

    def __init__(self, work: Callable[[], int]) -> None:
        self._exit_code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                follow_parent()
                code = work()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)

    def poll(self) -> int | None:
        """Its exit code, as a shell gives it; None while it lives."""
        if self._exit_code is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self._exit_code = os.waitstatus_to_exitcode(status)
        return self._exit_code

    def terminate(self) -> None:
        """Ask it to end; safe in a signal handler."""
        if self._exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def end(self, within_s: float) -> None:
        """Have it ended after that time, whatever it does."""
        self.terminate()
        deadline = time.monotonic() + within_s
        while self.poll() is None:
            if time.monotonic() > deadline:
                log.warning("The process for periodic tasks (pid %d) has not ended; killing it", self.pid)
                os.kill(self.pid, signal.SIGKILL)
                deadline = float("inf")
            time.sleep(_LOOK_S)
