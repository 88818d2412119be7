"""Whether a server can work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Health:
    """Whether a server can work, and what it lacks."""

    status: str
    """`ok`, or `degraded`: the database is not there or has another schema."""
    version: str
    """Release of the server."""
    database: str
    """`ok`, `another schema` or `unreachable`."""
    broker: str
    """`ok` or `unreachable`; work waits until it is back."""
    schema: str | None
    """Version of the database's schema; null: not known."""


@dataclass(frozen=True, kw_only=True)
class Liveness:
    """The server's process answers."""

    status: str
    """`ok`."""
    version: str
    """Release of the server."""


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """Whether a server can take requests now."""

    status: str
    """`ok` or `degraded`."""
    database: str
    """`ok`, `another schema` or `unreachable`; it counts as unreachable when it does not answer within 5 s."""


@dataclass(frozen=True, kw_only=True)
class StoreHealth:
    """Whose the artifact store is."""

    fault: str | None
    """Why nothing may be removed from it; null: it is this installation's."""
