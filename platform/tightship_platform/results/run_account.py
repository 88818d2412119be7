"""The account of a run in words: how far it counts, what did work, what was lost most. One rule for pages and lists.

An account is bucket → device-ns.
"""

from __future__ import annotations

from collections.abc import Mapping

from tightship_platform.results.run import Run
from tightship_platform.vocabulary import Bucket, RunState

BUCKET_LABEL: dict[Bucket, str] = {
    Bucket.PRODUCTIVE: "productive",
    Bucket.INPUT: "input",
    Bucket.CHECKPOINT: "checkpoint",
    Bucket.HOST_SYNC: "host sync",
    Bucket.HOST: "host",
    Bucket.QUEUED: "queued",
    Bucket.COMMUNICATION: "communication",
    Bucket.HELD_IDLE: "held idle",
    Bucket.STARTUP: "start-up",
    Bucket.SHUTDOWN: "shutdown",
    Bucket.NEVER_STARTED: "never started",
    Bucket.LOST: "lost",
    Bucket.UNALLOCATED: "unallocated",
    Bucket.UNEXPLAINED: "unexplained",
}

OF_NO_WORK = frozenset(
    (Bucket.STARTUP, Bucket.SHUTDOWN, Bucket.HELD_IDLE, Bucket.NEVER_STARTED, Bucket.LOST, Bucket.UNALLOCATED)
)
KEPT = frozenset(Bucket) - OF_NO_WORK
"""What work was spent on that was kept: computing, and what the steps waited for."""


def as_bucket(name: str) -> Bucket:
    """The bucket of that name; one that a newer server made counts as unexplained."""
    try:
        return Bucket(name)
    except ValueError:
        return Bucket.UNEXPLAINED


def losses(account: Mapping[str, int]) -> list[tuple[Bucket, int]]:
    """Everything but productive time, largest first; unexplained last and never left out."""
    rows: dict[Bucket, int] = {}
    for name, value in account.items():
        bucket = as_bucket(name)
        rows[bucket] = rows.get(bucket, 0) + value
    rows.pop(Bucket.PRODUCTIVE, None)
    unexplained = rows.pop(Bucket.UNEXPLAINED, 0)
    ordered = sorted(((b, v) for b, v in rows.items() if v > 0), key=lambda row: (-row[1], row[0]))
    return [*ordered, (Bucket.UNEXPLAINED, unexplained)]


def largest_loss(account: Mapping[str, int]) -> tuple[Bucket, int]:
    """The bucket that took most of what did no work, unexplained time included; 0 ns where nothing was lost."""
    return max(losses(account), key=lambda row: row[1])


def has_no_trace(account: Mapping[str, int]) -> bool:
    """No trace was taken: what did work is among the unexplained, and 0 would be a claim."""
    return not account.get(Bucket.PRODUCTIVE) and bool(account.get(Bucket.UNEXPLAINED))


def counted_until_ns(run: Run) -> int | None:
    """Up to when the account of a run counts, where that is not yet all of its life."""
    counted_ns = run.accounted_ns
    if run.account is None or counted_ns is None:
        return None
    if run.end_ns is None:
        return counted_ns if run.state == RunState.RUNNING else None
    return counted_ns if counted_ns < run.end_ns else None


def awaits_account(run: Run) -> bool:
    """The run has ended and its account does not yet count all of its life: its last records are on their way."""
    return run.end_ns is not None and counted_until_ns(run) is not None


def listed_account(run: Run) -> dict[str, int] | None:
    """The account of a run where a list may show shares of it; None before there is one that holds device time, and
    while an ended run's is not complete."""
    return run.account if run.account and run.device_ns and not awaits_account(run) else None
