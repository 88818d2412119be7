"""Is the collection healthy: what hosts deliver, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class HostDelivery:
    """What one host delivers."""

    host: str
    """Its name."""
    last_seen_ns: int
    """The last record of its agent, by the server's clock."""
    alive: bool
    """Its agent was heard of within the last 30 seconds."""
    newest_ns: int | None
    """Time of its newest sample, by its own clock; null: it delivered none within the last day."""
    gap_ns: int | None
    """Longest time between two samples of the last ten minutes; null: there are no two."""
    ahead_ns: int | None
    """How far its clock is ahead of the server's, or behind (negative), at least; null: samples are not taken, or wait
    in its spool, so that nothing can be said."""
    agent_version: str | None
    """Release of its agent; null: no heartbeat has come yet."""
    spool_entries: int | None
    """Records that wait there for the server; this and the next three as the agent counts them since it began, null:
    it does not say."""
    spool_bytes: int | None
    """Their size on disk."""
    dropped: int | None
    """Records that it gave up because the spool was full."""
    not_stored: int | None
    """Rows that the server took and did not store: too old, or with a value that cannot be."""
    faults: list[str]
    """Sources that fail there, with their reasons."""


@dataclass(frozen=True, kw_only=True)
class CollectionHealth:
    """All that is delivered, and what waits or failed behind it."""

    hosts: int
    """Hosts that ever reported."""
    silent: int
    """Of these, not heard of within the last 30 seconds."""
    deliveries: list[HostDelivery]
    """One row per host, at most 200: the silent ones first, then those with anything in their spool."""
    rolled_up_ns: int | None
    """How far the means per minute reach; null: nothing was ever rolled up."""
    late_hours: int
    """Hours of devices that are to be rolled up again, because samples of them came late."""
    waiting: int
    """Captures whose traces wait for an analysis."""
    waiting_since_ns: int | None
    """When the first of them was asked for; null: none waits."""
    failed: int
    """Captures of the last day that failed."""
    failure: str | None
    """Why the last of them did."""
    troubled: int
    """Runs whose account or judgement failed the last time it was tried."""
    trouble: str | None
    """Why it did for the last of them."""
    refused: int
    """Entries of the last day in the audit about tokens and logins that were refused."""
