"""Tokens, as far as they may be shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token without its secret, which is not kept."""

    name: str
    """Its name."""
    scopes: list[str]
    """What it permits: `ingest`, `read`, `capture`, `apply`, `delete`, `admin`."""
    host: str | None
    """The only host that it reports for; null: every host that is no other token's."""
    user: str | None
    """The user whose runs it reports; null: as the records say."""
    team: str | None
    """The team whose runs it reports; null: none."""
    created_ns: int
    """When it was made, or rotated."""
    last_used_ns: int | None
    """When it was last used, to the minute; null: never."""
    revoked_ns: int | None
    """When it was revoked; null: never."""
    expires_ns: int | None
    """From when on it is refused; null: never."""


@dataclass(frozen=True, kw_only=True)
class UserTeam:
    """The team of a user, as an administrator says."""

    user: str
    """Name of the user, as their runs show it."""
    team: str
    """The team of the runs that they report by tokens without one."""


@dataclass(frozen=True, kw_only=True)
class BrowserSession:
    """A person's session in a browser, begun by single sign-on."""

    name: str
    """`sso:` and the person's name at the provider."""
    subject: str
    """The provider's own name for the person, which nobody else has."""
    scopes: list[str]
    """What it permits: `read`, `capture`, `apply`, `admin`."""
    team: str | None
    """The team whose runs it shows; null: all."""
    begun_ns: int
    """When the person logged in."""
    expires_ns: int
    """From when on it is refused."""
