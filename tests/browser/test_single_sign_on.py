"""Single sign-on in a real browser, with a provider on another site: cookies go where browsers let them go."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from api_calls import Served, serving
from oidc_provider import CLIENT, SECRET, OidcProvider, oidc_provider

from tightship_platform.api.gate import COOKIE

pytestmark = pytest.mark.browser


@pytest.fixture
def signed_on(make_platform_env: Any) -> Iterator[tuple[Served, OidcProvider]]:
    """A server at 127.0.0.1 and its provider at localhost: two sites."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    with oidc_provider("localhost") as provider:
        settings = replace(
            make_platform_env().settings,
            public_url=f"http://127.0.0.1:{port}",
            sso_issuer=provider.issuer,
            sso_client_id=CLIENT,
            sso_client_secret=SECRET,
            sso_groups="ml=read",
        )
        with serving(settings, port=port) as served:
            yield served, provider


def test_a_person_logs_in_goes_where_they_wanted_and_logs_out(
    signed_on: tuple[Served, OidcProvider], chromium: Any
) -> None:
    served, provider = signed_on
    provider.asks_first = True
    context = chromium.new_context()
    try:
        page = context.new_page()
        wrong: list[str] = []
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.goto(f"{served.url}/runs?state=failed")
        assert page.url == f"{served.url}/login?next=%2Fruns%3Fstate%3Dfailed"
        page.get_by_role("link", name="Log in with").click()
        assert page.url.startswith(f"{provider.issuer}/authorize")
        page.click("#in")
        page.wait_for_selector(".fault")
        assert "is in no group that may log in here" in page.inner_text(".fault")

        provider.person["groups"] = ["ml"]
        page.get_by_role("link", name="Log in with").click()
        page.click("#in")
        page.wait_for_url(f"{served.url}/runs?state=failed")
        page.wait_for_selector("#page .answer")
        (cookie,) = [cookie for cookie in context.cookies() if cookie["name"] == COOKIE]
        assert cookie["httpOnly"] and cookie["sameSite"] == "Strict"
        assert [cookie["name"] for cookie in context.cookies() if "sso" in cookie["name"]] == []

        page.goto(f"{served.url}/logout")
        assert page.url == f"{served.url}/login" and COOKIE not in [cookie["name"] for cookie in context.cookies()]
        assert [text for text in wrong if "403 (Forbidden)" not in text] == []
    finally:
        context.close()
