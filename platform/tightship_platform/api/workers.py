"""Several server processes behind one listener: each is the whole server, and what they share is in the database."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable

from tightship_platform.tasks.reserved import follow_parent

log = logging.getLogger(__name__)

PAUSE_S = 1.0
"""Between the end of a process that nobody asked to end and the beginning of the one that follows it."""


def run_workers(count: int, work: Callable[[], None]) -> None:
    """Do `work` in `count` processes at once, one that ends by itself again, until a signal says stop.

    The caller has no threads yet and no open connections. Work ends on SIGTERM; a second signal is passed on, too.
    """
    children: set[int] = set()
    stopping = threading.Event()

    def stop(_signal: int, _frame: object) -> None:
        stopping.set()
        for child in list(children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)

    signals = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(one, stop) for one in signals]
    try:
        for _ in range(count):
            children.add(_begin(work))
        while children:
            child, status = os.wait()
            children.discard(child)
            if not stopping.is_set():
                how = os.waitstatus_to_exitcode(status)
                log.warning("Server process %d ended (%s); another one follows", child, how)
                time.sleep(PAUSE_S)
            if not stopping.is_set():
                children.add(_begin(work))
                if stopping.is_set():  # the signal came while it began
                    stop(signal.SIGTERM, None)
    finally:
        for one, handler in zip(signals, before, strict=True):
            signal.signal(one, handler)


def _begin(work: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, signal.SIG_DFL)
        os.setpgid(0, 0)  # Ctrl-C is the parent's to pass on
        follow_parent()
        work()
        code = 0
    except BaseException:
        log.exception("A server process cannot go on")
    finally:
        logging.shutdown()
        os._exit(code)  # the parent's part of this program is not ours to go on with
