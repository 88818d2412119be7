"""Errors of a database that are no fault of what it was asked: it is away, or has no room."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError

_SQLITE_FULL = 13
_SQLITE_AWAY = (5, 6, 10, 14)
"""SQLITE_BUSY, _LOCKED, _IOERR and _CANTOPEN (sqlite.org/rescode.html)."""
_POSTGRES_FULL = "53100"
_POSTGRES_AWAY = ("08", "40", "53", "57P")
"""No connection, rolled back for others (deadlock), no resources, shut down
(postgresql.org/docs/current/errcodes-appendix.html)."""


def is_disk_full(error: DBAPIError) -> bool:
    """The disk that the database is on has no room left."""
    sqlite, postgres = _codes(error)
    return sqlite == _SQLITE_FULL or postgres == _POSTGRES_FULL


def is_away(error: DBAPIError) -> bool:
    """The same statement may well succeed later: the database cannot be reached, is busy, or has no room."""
    sqlite, postgres = _codes(error)
    return (
        error.connection_invalidated
        or is_disk_full(error)
        or sqlite in _SQLITE_AWAY
        or postgres.startswith(_POSTGRES_AWAY)
    )


def _codes(error: DBAPIError) -> tuple[int, str]:
    sqlite = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF  # the rest of the code tells kinds of the same
    return sqlite, getattr(error.orig, "sqlstate", None) or ""
