"""A capture's way in single steps, for tests that need it at a certain stage. Run a1 of workflow train lives on h1."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from records import MIN, T0, ask, lease_of, reported
from sqlalchemy.orm import Session

from tightship_platform import captures
from tightship_platform.queries.captures import get_capture

NOW = T0 + MIN
SHA = "a" * 64


def never(key: str) -> None:
    raise AssertionError(f"analysis of {key} was sent off")


def request(session: Session, target: str = "a1", now: int = NOW, **more: Any) -> str:
    return captures.request(session, ask(target, **more), now=now).key


def armed(session: Session, ranks: tuple[int, ...] = (0,), now: int = NOW) -> str:
    key = request(session, now=now)
    assert [lease.capture for lease in captures.lease(session, lease_of("a1"), now=now)] == [key]
    captures.report(session, key, reported("armed", ranks=ranks), now=now)
    return key


def store(session: Session, key: str, rank: int = 0, now: int = NOW, **more: Any) -> captures.StoredTrace:
    given = {"pid": 100 + rank, "host": "h1", "sha256": SHA, "size_bytes": 10, "url": f"traces/{rank}", **more}
    return captures.trace_stored(session, key, rank=rank, now=now, **given)


def uploaded(session: Session, now: int = NOW) -> str:
    key = armed(session, now=now)
    assert store(session, key, now=now).completed
    return key


def claimed(session: Session, key: str, now: int = NOW) -> captures.Work:
    """All its traces are analyzed, and joining them is claimed."""
    while (work := captures.claim_work(session, key, now=now)) is not None and work.rank is not None:
        captures.trace_analyzed(session, work, now=now)
    assert work is not None
    return work


def state_of(session: Session, key: str) -> tuple[str, str | None]:
    capture = get_capture(session, key)
    return capture.state, capture.reason


def all_at_once(work: list[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
