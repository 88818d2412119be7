"""Tokens, as far as they may be shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token without its secret, which is not kept."""

    name: str
    """Its name."""
    scopes: list[str]
    """What it permits: `ingest`, `read`, `capture`, `apply`, `admin`."""
    created_ns: int
    """When it was made, or rotated."""
    last_used_ns: int | None
    """When it was last used, to the minute; null: never."""
    revoked_ns: int | None
    """When it was revoked; null: never."""
    expires_ns: int | None
    """From when on it is refused; null: never."""
