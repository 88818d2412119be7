"""Whether a server can work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Health:
    """Whether a server can work, and what it lacks."""

    status: str
    """`ok`, or `degraded`: the database is not there or has another schema."""
    database: str
    """`ok`, `another schema` or `unreachable`."""
    version: str | None
    """Release of the server; null: the request has no token."""
    broker: str | None
    """`ok` or `unreachable`; work waits until it is back. Null: the request has no token."""
    schema: str | None
    """Version of the database's schema; null: not known, or the request has no token."""
    reason: str | None = None
    """In what that is not this release's, and what to do: also where the server works, because a newer release has
    extended the schema and this one can go on with it. Null: it is this release's, or as `schema`."""


@dataclass(frozen=True, kw_only=True)
class Liveness:
    """The server's process answers."""

    status: str
    """`ok`."""


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """Whether a server can take requests now."""

    status: str
    """`ok`, `degraded`, or `ending`: the server was asked to end and takes no more work."""
    database: str | None
    """`ok`, `another schema` or `unreachable`, also when it does not answer within 5 s; null: the server is ending."""


@dataclass(frozen=True, kw_only=True)
class StoreHealth:
    """Whose the artifact store is."""

    fault: str | None
    """Why nothing may be removed from it; null: it is this installation's."""
