"""A server behind a proxy that ends TLS: its cookies, whose pages may act, and what every answer tells a browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from api_calls import Served, ok, refused, run_record
from waiting import PATIENCE_S

from tightship_platform.api.app import create_app
from tightship_platform.api.headers import HEADERS, inline_source
from tightship_platform.errors import Conflict, Invalid
from tightship_platform.settings import Settings

ADMIN = "admin-token-of-tests"
PUBLIC = "https://tightship.example"


@pytest.fixture
def proxied(platform_env: Any, serve: Callable[..., Served]) -> Served:
    """A server that listens on loopback and is reached through a proxy."""
    return serve(replace(platform_env.settings, token=ADMIN, public_url=PUBLIC + ":443/"))


def browser(served: Served) -> httpx.Client:
    """As a proxy passes it on that writes its own name for the server into Host, as nginx does by default."""
    return httpx.Client(base_url=served.url, headers={"accept": "text/html"}, trust_env=False, timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("public_url", "secure"), [(PUBLIC, True), ("http://tightship.example:8050", False), ("", False)]
)
def test_the_cookie_travels_only_under_tls_where_the_pages_do(
    platform_env: Any, serve: Callable[..., Served], public_url: str, secure: bool
) -> None:
    served = serve(replace(platform_env.settings, token=ADMIN, public_url=public_url))
    with browser(served) as pages:
        cookie = pages.post("/login", data={"token": ADMIN}).headers["set-cookie"]
    assert ("Secure" in cookie) is secure


def test_only_the_pages_of_the_public_address_may_act(proxied: Served) -> None:
    with proxied.http(ADMIN) as http:
        ok(http.post("/runs", json=run_record()))  # no browser
        for origin in (PUBLIC, "HTTPS://Tightship.Example"):
            ok(http.post("/runs", json=run_record(), headers={"origin": origin}))
        # The last one is the Host that the request came with: the proxy's, not the browser's.
        for origin in ("http://tightship.example", PUBLIC + ":8443", "https://evil.example", "null", proxied.url):
            refused(http.post("/runs", json=run_record(), headers={"origin": origin}), 403, "are refused", PUBLIC)


def test_a_public_address_needs_a_token(platform_env: Any) -> None:
    with pytest.raises(Conflict, match=r"TIGHTSHIP_PUBLIC_URL is 'https://tightship.example'.*tightship token create"):
        create_app(replace(platform_env.settings, public_url=PUBLIC))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("https://tightship.example/", PUBLIC),
        ("HTTPS://Tightship.Example:443", PUBLIC),
        ("http://[::1]:8050", "http://[::1]:8050"),
        ("http://localhost:80", "http://localhost"),
    ],
)
def test_the_public_address_is_kept_as_a_browser_writes_it(given: str, kept: str) -> None:
    assert Settings(public_url=given).public_url == kept


@pytest.mark.parametrize(
    "url",
    ["tightship.example", "https://", "ftp://a", "https://a/path", "https://u:p@a", "https://a?b", "https://a:b", "x"],
)
def test_what_is_no_public_address_is_one_line(url: str) -> None:
    with pytest.raises(
        Invalid, match=r"TIGHTSHIP_PUBLIC_URL is .*; expected an http:// or https:// URL without a path"
    ):
        Settings(public_url=url)


def test_every_answer_carries_the_headers(served: Served, proxied: Served) -> None:
    def defect() -> None:
        raise RuntimeError("a defect")

    served.app.add_api_route("/defect", defect, methods=["POST"])
    with served.pages() as pages, browser(proxied) as strangers:
        answers = {
            "api": pages.get("/api/v1/runs"),
            "page": pages.get("/"),
            "asset": pages.get("/assets/page.css"),
            "moved": pages.get("/favicon.ico"),
            "nothing": pages.get("/api/v1/nothing"),
            "method": pages.delete("/api/v1/runs"),
            "broken": pages.post("/api/v1/runs", content=b"{"),
            "callback": pages.post("/_dash-update-component", content=b"{}"),
            "large": pages.post("/", content=b"x" * 2_000_000),
            "origin": pages.post("/", headers={"origin": "https://evil.example"}),
            "login": strangers.get("/login"),
            "to login": strangers.get("/"),
            "no token": strangers.get("/api/v1/runs"),
        }
    with served.pages() as pages:  # uvicorn closes its connection
        answers["defect"] = pages.post("/defect")
    assert answers["defect"].status_code == 500
    for what, answer in answers.items():
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"], what
        for name in HEADERS.keys() - {"content-security-policy"}:
            assert answer.headers.get_list(name) == [HEADERS[name]], (what, name)


def test_no_page_may_run_what_is_not_its_own(served: Served, proxied: Served) -> None:
    with served.pages() as pages, browser(proxied) as strangers:
        page, login = pages.get("/"), strangers.get("/login")
    policy = page.headers["content-security-policy"]
    (scripts,) = re.findall(r"script-src ([^;]+)", policy)
    assert scripts.split()[0] == "'self'"
    assert "unsafe" not in scripts
    inline = re.findall(r"<script(?![^>]*(?:src=|application/json))[^>]*>(.*?)</script>", page.text, re.S)
    assert {inline_source(text) for text in inline} == set(scripts.split()[1:])
    assert "unsafe" not in login.headers["content-security-policy"]
    (style,) = re.findall(r"<style>(.*?)</style>", login.text, re.S)
    assert inline_source(style) in login.headers["content-security-policy"]
