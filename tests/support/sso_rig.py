"""A server with single sign-on, and a browser that goes where it is sent."""

from __future__ import annotations

import html
import re
import socket
import ssl
from dataclasses import replace
from typing import Any

import httpx
from oidc_provider import CLIENT, SECRET
from waiting import PATIENCE_S

from tightship_platform.api.sso import START
from tightship_platform.settings import Settings

ADMIN = "an-administrators-own-token"
GROUPS = "/ml/vision=read,capture@vision; all of them = read ; it=admin"


def sso_settings(platform_env: Any, issuer: str, **changes: Any) -> Settings:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    signing_on = {
        "public_url": f"http://127.0.0.1:{port}",
        "sso_issuer": issuer,
        "sso_client_id": CLIENT,
        "sso_client_secret": SECRET,
        "sso_groups": GROUPS,
    }
    return replace(platform_env.settings, token=ADMIN, **(signing_on | changes))


class Browser:
    """Goes where it is sent, as a browser does; and looks as a test wants it to."""

    def __init__(self, base: str, trusted: ssl.SSLContext | None = None) -> None:
        self.base = base
        self.http = httpx.Client(
            base_url=base,
            headers={"accept": "text/html"},
            trust_env=False,
            timeout=PATIENCE_S,
            follow_redirects=False,
            verify=trusted or True,
        )

    def begin(self, target: str = "/runs?state=failed") -> str:
        """To the provider; returns the address that it sends the browser back to."""
        started = self.http.get(START, params={"next": target})
        assert started.status_code == 303, line_of(started)
        let_in = httpx.get(started.headers["location"], trust_env=False)
        assert let_in.status_code == 302
        back: str = let_in.headers["location"]
        return back

    def log_in(self, target: str = "/runs?state=failed") -> httpx.Response:
        return self.http.get(self.begin(target))


def line_of(page: httpx.Response) -> str:
    """The one line that says what went wrong."""
    found = re.search(r'<p class="fault">(.*?)</p>', page.text)
    assert found, page.text
    return html.unescape(found[1])
