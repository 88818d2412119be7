"""The end of a task's time, apart from all else that may go wrong in it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from billiard.pool import SIG_SOFT_TIMEOUT


class OutOfTime(BaseException):
    """The task's soft time limit has passed. No `Exception`, so that nothing which isolates failures takes it for one
    of those."""


@contextmanager
def time_limit() -> Iterator[None]:
    """Within it, the soft time limit of a task raises OutOfTime; outside of a task nothing happens."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise OutOfTime

    before = signal.signal(SIG_SOFT_TIMEOUT, over)
    try:
        yield
    finally:
        signal.signal(SIG_SOFT_TIMEOUT, before)
