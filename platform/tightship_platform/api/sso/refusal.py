"""Why somebody is not logged in."""

from __future__ import annotations

from tightship_platform.errors import TightshipError


class ProviderTrouble(TightshipError):
    """The provider is away, or answers what no provider may."""

    http_status = 502


class LoginRefused(TightshipError):
    """The login is not what it claims to be, or the person's groups permit nothing.

    :param who: the person, by a name that the provider vouched for; empty where nobody did.
    :param reason: one word for figures and the audit.
    """

    http_status = 403

    def __init__(self, message: str, *, who: str = "", reason: str = "invalid") -> None:
        super().__init__(message)
        self.who = who
        self.reason = reason
