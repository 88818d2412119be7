"""Who did what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """One thing that somebody did, or was refused."""

    time_ns: int
    """When."""
    actor: str
    """A token's name, `sso:` and a person's, `loopback`, `environment`, `cli`, `schedule`, `retention` or `unknown`."""
    action: str
    """`<thing>.<verb>`, such as `trace.download`."""
    target: str
    """What it was done to."""
    detail: str
    """More about it as JSON; `{}`: nothing."""
