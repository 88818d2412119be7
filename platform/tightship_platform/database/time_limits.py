"""How long PostgreSQL may take: limits that the server keeps, and one of ours for a server that says nothing.

[Note: a silent database]
The limits of statements, locks and idle transactions are kept by PostgreSQL, and TCP notices a host that is gone. A
server that is stopped, or whose disk hangs, keeps none of them, while its kernel still answers for it. So we wait for
an answer GRACE_S longer than a statement may take, and then close the connection.

Maintenance is exempt: a migration takes as long as it takes. A worker's task has a limit as a whole, and each of its
statements may take as long.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tightship_platform.settings import Settings

GRACE_S = 5
CONNECT_S = 5
TASK_S = 600
"""A task of a worker is killed after this long."""
_PROBE_S = 2
_KEEPALIVES = 3
_NOTHING_READY = 0
Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class TimeLimits:
    """Seconds; 0: no limit. See the settings `database_…_s`."""

    statement_s: int
    lock_s: int
    idle_s: int
    silent_s: int
    pool_s: int

    @property
    def answer_s(self) -> float:
        """How long an answer is waited for."""
        return self.statement_s + GRACE_S if self.statement_s else math.inf

    def as_arguments(self, options: str) -> dict[str, str | int]:
        """Arguments of a connection.

        :param options: those that the URL gives; they win.
        """
        arguments: dict[str, str | int] = {
            "connect_timeout": CONNECT_S,
            "application_name": "tightship",
            "options": f"-c statement_timeout={self.statement_s}s -c lock_timeout={self.lock_s}s"
            f" -c idle_in_transaction_session_timeout={self.idle_s}s {options}".strip(),
        }
        if self.silent_s:
            between_s = max(1, self.silent_s // (2 * _KEEPALIVES))
            arguments |= {
                "tcp_user_timeout": self.silent_s * 1000,
                "keepalives": 1,
                "keepalives_idle": max(1, self.silent_s - _KEEPALIVES * between_s),
                "keepalives_interval": between_s,
                "keepalives_count": _KEEPALIVES,
            }
        return arguments


def for_requests(settings: Settings) -> TimeLimits:
    """Of a server's requests and of commands: what the settings say."""
    return TimeLimits(
        statement_s=settings.database_statement_s,
        lock_s=settings.database_lock_s,
        idle_s=settings.database_idle_s,
        silent_s=settings.database_silent_s,
        pool_s=settings.database_pool_s,
    )


def for_tasks(settings: Settings) -> TimeLimits:
    """Of a worker's tasks."""
    return replace(for_requests(settings), statement_s=TASK_S, lock_s=TASK_S, idle_s=TASK_S)


def for_maintenance(settings: Settings) -> TimeLimits:
    """Of migrations and what follows them: only that the database is still there."""
    return replace(for_requests(settings), statement_s=0, lock_s=0, idle_s=0)


def for_probes(settings: Settings) -> TimeLimits:
    """Of a look whether the database is there."""
    return replace(for_requests(settings), statement_s=_PROBE_S, lock_s=_PROBE_S, pool_s=_PROBE_S)


def connect(limits: TimeLimits, arguments: Any) -> Any:
    """A psycopg connection that waits for answers no longer than the limits say."""
    import psycopg

    class BoundedConnection(psycopg.Connection[Any]):
        def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
            return super().wait(self._bounded(gen), *args, **kwargs)

        def _bounded(self, gen: Generator[Any, Any, Answer]) -> Generator[Any, Any, Answer]:
            deadline_s = time.monotonic() + limits.answer_s
            try:
                wanted = next(gen)
                while True:
                    ready = yield wanted
                    if ready == _NOTHING_READY and time.monotonic() > deadline_s:
                        self.pgconn.finish()
                        raise psycopg.OperationalError(f"the database gave no answer for {limits.answer_s:g} s")
                    wanted = gen.send(ready)
            except StopIteration as end:
                answer: Answer = end.value
                return answer

    return BoundedConnection.connect(**arguments)
