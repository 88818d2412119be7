"""Single sign-on, against a real provider: who gets in, as whom, and what a provider or a browser cannot make us do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from api_calls import Served, ok, refused, run_record
from click.testing import CliRunner
from oidc_provider import OidcProvider
from sso_rig import ADMIN, Browser, line_of, sso_settings

from tightship_platform.api import auth
from tightship_platform.api.auth import create_token
from tightship_platform.api.gate import COOKIE
from tightship_platform.api.sso import CALLBACK, START
from tightship_platform.commands.token import token
from tightship_platform.database.models import BrowserSession
from tightship_platform.errors import NotFound
from tightship_platform.vocabulary import Scope


def entries(served: Served, action: str) -> list[tuple[str, dict[str, Any]]]:
    with served.http(ADMIN) as http:
        return [(e["actor"], json.loads(e["detail"])) for e in ok(http.get("/audit", params={"action": action}))]


# ---- who gets in -----------------------------------------------------------------------------------------------------


def test_a_member_of_a_group_is_let_in_as_the_group_may(
    served: Served, provider: OidcProvider, browser: Browser
) -> None:
    provider.person["groups"] = ["nobody's", "/ml/vision", "it"]
    with served.http(ADMIN) as http:
        ok(http.post("/runs", json=run_record("0000000000000001", team="vision")))
    with served.database.session() as session:
        ingest = create_token(session, "v", [Scope.INGEST], team="vision")
    with served.http(ingest) as http:
        ok(http.post("/runs", json=run_record("0000000000000002", host="node-2")))
    back = browser.begin()
    query = parse_qs(urlsplit(back).query)
    page = browser.http.get(back)
    assert page.status_code == 200 and 'url=/runs?state=failed"' in page.text
    (cookie,) = [c for c in page.headers.get_list("set-cookie") if c.startswith(f"{COOKIE}=")]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and f"Max-Age={12 * 3600}" in cookie
    assert browser.http.get("/runs").status_code == 200
    assert [run["run"] for run in ok(browser.http.get("/api/v1/runs"))] == ["0000000000000002"], "of its team only"
    refused(browser.http.get("/api/v1/audit"), 403, "Session 'sso:ann@example.com' lacks the scope 'admin'")
    refused(browser.http.post("/api/v1/runs", json=run_record()), 403, "it has: capture, read")
    ((who, detail),) = entries(served, "session.begin")
    assert who == "sso:ann@example.com"
    expected = {"peer": "127.0.0.1", "subject": "0815", "scopes": ["capture", "read"], "team": "vision"}
    assert detail == expected
    with served.database.session() as session:
        (row,) = session.query(BrowserSession).all()
        kept = repr(vars(row))
        assert browser.http.cookies[COOKIE] not in kept and query["state"][0] not in kept
    provider.person = {"sub": "7", "preferred_username": "bob", "groups": "it"}
    other = Browser(served.url)
    assert other.log_in().status_code == 200
    assert ok(other.http.get("/api/v1/audit"))[0]["actor"] == "sso:bob"
    other.http.close()


def test_who_is_in_no_group_is_refused_with_one_line(served: Served, provider: OidcProvider, browser: Browser) -> None:
    for groups in (["/ml", "ml/vision", "IT"], [], None, {"it": 1}, [["it"], {"a": "it"}, 7], "it;", ["x"] * 20_000):
        provider.person["groups"] = groups
        page = browser.log_in()
        assert page.status_code == 403
        assert line_of(page).startswith("ann@example.com is in no group that may log in here; ")
        assert browser.http.get("/runs").headers["location"].startswith("/login?next=")
    ((who, detail),) = entries(served, "session.refuse")  # one row a minute
    assert who == "sso:ann@example.com" and detail["reason"] == "group"
    assert 'tightship_refused_logins_total{reason="group"}' in served.http(ADMIN).get(served.url + "/metrics").text


def test_a_name_is_taken_for_what_it_is(served: Served, provider: OidcProvider, browser: Browser) -> None:
    provider.person = {"sub": "66", "email": "boss@example.com", "email_verified": False, "groups": ["it"]}
    names = [None, "environment", "<b>\n\x1b[31m\u202eeve", "x" * 5000, 7]
    shown = []
    for name in names:
        provider.person["preferred_username"] = name
        assert browser.log_in().status_code == 200
        shown.append(entries(served, "session.begin")[0][0])
    assert shown == ["sso:66", "sso:environment", "sso:<b> [31m eve", "sso:" + "x" * 189 + "…", "sso:66"]


def test_a_session_ends_by_the_person_by_an_administrator_and_by_time(
    served: Served, provider: OidcProvider, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.person["groups"] = ["all of them"]
    browser.log_in()
    secret = browser.http.cookies[COOKIE]
    assert browser.http.get("/logout").headers["location"] == "/login"
    assert COOKIE not in browser.http.cookies
    with served.http(secret) as http:
        refused(http.get("/runs"), 401)
    assert [who for who, _ in entries(served, "session.end")] == ["sso:ann@example.com"]

    assert browser.log_in().status_code == 200 and browser.http.get("/runs").status_code == 200
    command = CliRunner().invoke
    listed = json.loads(command(token, ["sessions", "--json"]).stdout)
    assert [(row["name"], row["subject"], row["scopes"]) for row in listed] == [
        ("sso:ann@example.com", "0815", ["read"])
    ]
    ended = command(token, ["logout", "sso:ann@example.com"])
    assert ended.stdout == "'sso:ann@example.com' is logged out of 1 session.\n"
    again = command(token, ["logout", "sso:ann@example.com"])
    assert isinstance(again.exception, NotFound) and "see `tightship token sessions`" in str(again.exception)
    assert "Nobody is logged in" in command(token, ["sessions"]).stdout
    assert browser.http.get("/runs").status_code == 303

    assert browser.log_in().status_code == 200
    with served.database.session() as session:
        expires_ns = max(row.expires_ns for row in session.query(BrowserSession))
    monkeypatch.setattr(auth, "now_ns", lambda: expires_ns - 1)
    assert browser.http.get("/runs").status_code == 200
    monkeypatch.setattr(auth, "now_ns", lambda: expires_ns)
    assert browser.http.get("/runs").status_code == 303
    refused(browser.http.get("/api/v1/runs"), 401, "Session 'sso:ann@example.com' expired at", "log in again")


def test_under_tls_the_cookies_are_for_tls_and_this_server_alone(
    platform_env: Any, serve: Callable[..., Served], provider: OidcProvider
) -> None:
    away = Browser(serve(sso_settings(platform_env, provider.issuer, public_url="https://tightship.example")).url)
    started = away.http.get(START)
    cookie = started.headers["set-cookie"]
    assert cookie.startswith("__Host-tightship_sso=")
    assert {"HttpOnly", "Path=/", "SameSite=lax", "Secure", "Max-Age=600"} <= set(cookie.split("; ")[1:])
    query = parse_qs(urlsplit(started.headers["location"]).query)
    assert query["redirect_uri"] == [f"https://tightship.example{CALLBACK}"]
    ended = away.http.get(CALLBACK).headers["set-cookie"]
    assert ended.startswith('__Host-tightship_sso="";') and "Secure" in ended
    away.http.close()


def test_the_secret_is_given_as_the_provider_takes_it(served: Served, provider: OidcProvider, browser: Browser) -> None:
    provider.person["groups"] = ["it"]
    provider.takes, provider.discovered = "post", {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
    assert browser.log_in().status_code == 200
    provider.takes = "basic"
    assert "cannot be used (it answered 401 invalid_client)" in line_of(browser.log_in())


def test_the_button_is_there_where_it_does_something(
    served: Served, provider: OidcProvider, platform_env: Any, serve: Callable[..., Served]
) -> None:
    page = httpx.get(served.url + "/login", params={"next": '/runs"&x'}, trust_env=False).text
    issuer = provider.issuer.removeprefix("http://")
    assert f'<a class="sso" href="/login/sso?next=%2Fruns%22%26x">Log in with {issuer}</a>' in page
    without = serve(replace(platform_env.settings, token=ADMIN))
    assert "sso" not in httpx.get(without.url + "/login", trust_env=False).text.replace("a.sso", "")
    for path in (START, CALLBACK):
        page = httpx.get(without.url + path, trust_env=False)
        assert (page.status_code, line_of(page)) == (404, "This server has no single sign-on; log in with a token.")


# ---- what a browser brings is not believed ---------------------------------------------------------------------------


def test_a_login_begins_one_session_in_the_browser_that_began_it(
    served: Served, provider: OidcProvider, browser: Browser
) -> None:
    provider.person["groups"] = ["it"]
    provider.is_sloppy = True
    back = browser.begin()
    victim = Browser(served.url)
    page = victim.http.get(back)  # somebody else's link
    assert page.status_code == 403 and "was not begun in this browser" in line_of(page)
    victim.begin()
    page = victim.http.get(back)
    assert page.status_code == 403 and COOKIE not in victim.http.cookies
    kept = browser.http.cookies["tightship_sso"]
    assert browser.http.get(back).status_code == 200
    assert "tightship_sso" not in browser.http.cookies
    assert "is done already" in line_of(browser.http.get(back))
    thief = Browser(served.url)
    thief.http.cookies.set("tightship_sso", kept)
    page = thief.http.get(back)
    assert (page.status_code, line_of(page)) == (409, "The login is refused: it is done already; begin again.")
    assert COOKIE not in thief.http.cookies
    assert {detail["reason"] for _, detail in entries(served, "session.refuse")} == {"state"}
    victim.http.close()
    thief.http.close()


def test_a_code_is_used_once_and_an_error_of_the_provider_is_passed_on(
    served: Served, provider: OidcProvider, browser: Browser
) -> None:
    back = browser.begin()
    state = parse_qs(urlsplit(back).query)["state"][0]
    page = browser.http.get(CALLBACK, params={"state": state, "code": "invented"})
    assert "does not know the code" in line_of(page)
    for query, line in (
        ({"error": "access_denied"}, "The login is refused: the provider says 'access_denied'."),
        ({"error": "<script>\n" * 300}, "The login is refused: the provider says '<script> <script>"),
        ({}, "The login is refused: the provider says 'no code'."),
    ):
        state = parse_qs(urlsplit(browser.begin()).query)["state"][0]
        page = browser.http.get(CALLBACK, params={"state": state} | query)
        assert page.status_code == 403 and line_of(page).startswith(line) and "<script>" not in page.text
    for state in ("", "é", "a" * 43, "\x00"):
        browser.begin()
        assert browser.http.get(CALLBACK, params={"state": state, "code": "c"}).status_code == 403
    for cookie in ("", ".", "a.b", "a" * 43, "a" * 43 + ".%", '"'):
        browser.http.cookies.set("tightship_sso", cookie)
        assert browser.http.get(CALLBACK, params={"state": "a", "code": "c"}).status_code == 403


def test_a_login_leads_nowhere_else(served: Served, provider: OidcProvider, browser: Browser) -> None:
    provider.person["groups"] = ["it"]
    host = "evil.example"
    for target in (f"https://{host}/", f"//{host}", f"/\\{host}", f"/\t/{host}", host, "javascript:1", "", "/" * 9000):
        page = browser.log_in(target)
        assert page.status_code == 200 and 'content="0; url=/"' in page.text and host not in page.text
    back = browser.begin()
    secret = browser.http.cookies["tightship_sso"].partition(".")[0]
    browser.http.cookies.clear()
    browser.http.cookies.set("tightship_sso", f"{secret}.https%3A%2F%2F{host}")
    assert browser.http.get(back).status_code == 403, "where to go is part of the login"
