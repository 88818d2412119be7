"""A server whose people come from a real provider."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from api_calls import Served
from oidc_provider import OidcProvider, oidc_provider
from sso_rig import Browser, sso_settings


@pytest.fixture
def provider() -> Iterator[OidcProvider]:
    with oidc_provider() as running:
        yield running


@pytest.fixture
def served(platform_env: Any, serve: Callable[..., Served], provider: OidcProvider) -> Served:
    """A server with single sign-on."""
    settings = sso_settings(platform_env, provider.issuer)
    return serve(settings, port=urlsplit(settings.public_url).port)


@pytest.fixture
def browser(served: Served) -> Iterator[Browser]:
    made = Browser(served.url)
    yield made
    made.http.close()
