"""Single sign-on: people log in by an OpenID Connect provider, and their groups there say what they may do here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tightship_platform.api.sso.addresses import CALLBACK, START
from tightship_platform.settings import Settings

if TYPE_CHECKING:
    from tightship_platform.api.sso.login import SingleSignOn

__all__ = ["CALLBACK", "START", "single_sign_on"]


def single_sign_on(settings: Settings) -> SingleSignOn | None:
    """Single sign-on, where TIGHTSHIP_SSO_ISSUER is set.

    :raises Invalid: it is, and another setting is missing or no such thing.
    """
    if not settings.sso_issuer:
        return None
    from tightship_platform.api.sso.login import SingleSignOn  # what checks tokens takes a while to import

    return SingleSignOn(settings)
