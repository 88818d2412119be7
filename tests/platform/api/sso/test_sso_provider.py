"""Single sign-on, against a provider that says anything, or nothing; and settings that make no sense."""

from __future__ import annotations

import base64
import gzip
import hmac
import json
import logging
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from api_calls import Served
from certificates import make_authority
from joserfc import jwt
from joserfc.jwk import OctKey
from oidc_provider import CLIENT, SECRET, OidcProvider, key, oidc_provider
from sso_rig import Browser, line_of, sso_settings
from waiting import PATIENCE_S

from tightship_platform.api.app import create_app
from tightship_platform.api.gate import COOKIE
from tightship_platform.api.sso import START, single_sign_on
from tightship_platform.api.sso import provider as provider_module
from tightship_platform.errors import Invalid

# ---- what a provider says is not believed ----------------------------------------------------------------------------


def unsigned(header: dict[str, Any], claims: dict[str, Any]) -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in (header, claims)]
    return f"{parts[0]}.{parts[1]}."


def by_public_key(claims: dict[str, Any]) -> str:
    signed = unsigned({"alg": "HS256", "kid": "first"}, claims).rstrip(".")
    digest = hmac.digest(key().as_pem(private=False), signed.encode(), "sha256")
    return f"{signed}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def by_foreign_key(claims: dict[str, Any]) -> str:
    return jwt.encode({"alg": "RS256", "kid": "first"}, claims, key("foreign"))


def with_own_key(claims: dict[str, Any]) -> str:
    foreign = key("foreign")
    return jwt.encode({"alg": "RS256", "jwk": foreign.as_dict(private=False)}, claims, foreign)


NOT_FOR_THIS_LOGIN: list[dict[str, Any]] = [
    {"aud": "another"},
    {"aud": ["another", "and another"]},
    {"aud": [CLIENT, "another"], "azp": "another"},
    {"aud": [CLIENT, "another"]},
    {"aud": {CLIENT: 1}},
    {"azp": "another"},
    {"iss": "https://evil.example"},
    {"iss": None},
    {"iss": ["http://127.0.0.1"]},
    {"exp": 1_000_000_000},
    {"exp": "tomorrow"},
    {"exp": float("nan")},
    {"exp": None},
    {"iat": 9_000_000_000, "exp": 9_000_000_300},
    {"iat": None},
    {"nbf": 9_000_000_000},
    {"nonce": "another"},
    {"nonce": None},
    {"nonce": 7},
    {"sub": None},
    {"sub": 7},
    {"sub": ""},
    {"sub": "a\nb"},
    {"sub": "x" * 256},
    {"at_hash": "AAAA"},
    {"at_hash": 7},
]


def test_claims_that_are_not_for_this_login_are_refused(
    served: Served, provider: OidcProvider, browser: Browser
) -> None:
    provider.person["groups"] = ["it"]
    for changes in NOT_FOR_THIS_LOGIN:
        provider.claims = lambda claims, changes=changes: {
            name: value for name, value in (claims | changes).items() if value is not None
        }
        refuses(browser, changes)


NOT_SIGNED: list[Callable[[dict[str, Any]], str]] = [
    lambda claims: unsigned({"alg": "none"}, claims),
    lambda claims: unsigned({"alg": "None", "kid": "first"}, claims),
    lambda claims: unsigned({"alg": "RS256", "kid": "first"}, claims),
    lambda claims: unsigned({"alg": ["RS256"], "kid": {"a": 1}}, claims),
    by_public_key,
    lambda claims: jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(SECRET), algorithms=["HS256"]),
    by_foreign_key,
    with_own_key,
    lambda claims: jwt.encode({"alg": "RS256", "kid": "first"}, claims, key()) + "A",
    lambda claims: ".".join([unsigned({"alg": "RS256", "kid": "first"}, claims).rstrip("."), "AAAA"]),
    lambda claims: "not a token",
    lambda claims: "",
    lambda claims: "..",
    lambda claims: "é" * 100,
    lambda claims: "x" * 500_000,
]


def test_an_id_token_that_the_provider_did_not_sign_is_refused(
    served: Served, provider: OidcProvider, browser: Browser
) -> None:
    provider.person["groups"] = ["it"]
    for number, sign in enumerate(NOT_SIGNED):
        provider.sign = sign
        refuses(browser, number)


def refuses(browser: Browser, what: object = "") -> None:
    page = browser.log_in()
    assert page.status_code == 403, what
    assert line_of(page).startswith("The login is refused: the provider's ID token is not valid (")
    assert COOKIE not in browser.http.cookies


def test_new_keys_of_the_provider_are_read(
    served: Served, provider: OidcProvider, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.person["groups"] = ["it"]
    assert browser.log_in().status_code == 200
    provider.keys = [key("foreign")]
    browser.http.cookies.clear()
    refuses(browser)  # not more often than every KEYS_S
    monkeypatch.setattr(provider_module, "KEYS_S", 0.0)
    assert browser.log_in().status_code == 200
    assert provider.requests.count("/keys") == 2
    assert provider.requests.count("/.well-known/openid-configuration") == 1


# ---- a provider that is away, or answers nonsense --------------------------------------------------------------------

DISCOVERY = "/.well-known/openid-configuration"
BOMB = gzip.compress(b"[" * 3_000_000)


NONSENSE: list[tuple[Any, str]] = [
    ((500, b"<html>broken</html>", {}), "it answered 500"),
    ((503, b'{"error": "a\\nb\\u001b"}', {}), "it answered 503 a b"),
    ((200, b"<html>a portal</html>", {}), "its answer cannot be read"),
    ((200, b"[]", {}), "its answer cannot be read"),
    ((200, b"[" * 100_000, {}), "its answer cannot be read"),
    ((200, b'{"a":' * 100_000, {}), "its answer cannot be read"),
    ((200, b"\xff\xfe", {}), "its answer cannot be read"),
    ((200, BOMB, {"content-encoding": "gzip"}), "its answer cannot be read"),
    ((200, b" " * (2 * 1024**2), {}), "its answer has more than 1048576 bytes"),
    ((302, b"", {"location": "http://127.0.0.1:1/"}), "it answered 302"),
    ((200, b"{}", {}), "its answer cannot be read: Object missing required field"),
]
NO_ADDRESSES: list[dict[str, Any]] = [
    {"issuer": "https://evil.example"},
    {"issuer": None},
    {"authorization_endpoint": "javascript:alert(1)"},
    {"authorization_endpoint": "//evil.example/"},
    {"authorization_endpoint": "https://a\nb/"},
    {"authorization_endpoint": "http://[/"},
    {"authorization_endpoint": ["https://a/"]},
    {"token_endpoint": "file:///etc/passwd"},
    {"jwks_uri": 7},
]


def forget(served: Served) -> None:
    """The server knows nothing of the provider, as after its start."""
    served.app.state.single_sign_on = single_sign_on(served.settings)


def test_nonsense_is_one_line(
    served: Served, provider: OidcProvider, browser: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    provider.person["groups"] = ["it"]
    for path in (DISCOVERY, "/token", "/keys"):
        for answer, line in NONSENSE:
            forget(served)
            provider.answers[path] = answer
            page = browser.http.get(START) if path == DISCOVERY else browser.log_in()
            assert page.status_code == 502, (path, line)
            assert line_of(page).startswith(f"The provider at {provider.issuer} cannot be used ({line}"), (path, line)
            provider.answers.clear()
        assert browser.log_in().status_code == 200, "as soon as the provider is well again"
    assert all(record.exc_info is None for record in caplog.records if record.levelno >= logging.ERROR)


def test_addresses_that_no_provider_has_are_one_line(served: Served, provider: OidcProvider, browser: Browser) -> None:
    for discovered in NO_ADDRESSES:
        forget(served)
        provider.discovered = discovered
        page = browser.http.get(START)
        assert page.status_code == 502, discovered
        assert line_of(page).startswith(f"The provider at {provider.issuer} cannot be used ("), discovered


def test_a_provider_that_is_silent_or_away_is_one_line(
    platform_env: Any, served: Served, provider: OidcProvider, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    provider.answers[DISCOVERY] = lambda: release.wait(PATIENCE_S) and None
    monkeypatch.setattr(provider_module, "ANSWER_S", 0.3)
    try:
        assert line_of(browser.http.get(START)).endswith("cannot be used (no answer within 0 s).")
        monkeypatch.setattr(provider_module, "MOST_AT_ONCE", 0)
        assert "0 logins wait for it already; try again" in line_of(browser.http.get(START))
    finally:
        release.set()


def test_a_provider_that_nobody_runs_is_one_line(platform_env: Any, serve: Callable[..., Served]) -> None:
    settings = sso_settings(platform_env, "http://127.0.0.1:1")
    away = Browser(serve(settings, port=urlsplit(settings.public_url).port).url)
    page = away.http.get(START)
    assert page.status_code == 502 and "cannot be used (All connection attempts failed)." in line_of(page)
    assert away.http.get("/login").status_code == 200
    away.http.close()


def test_a_certificate_that_a_private_authority_signed(
    platform_env: Any, serve: Callable[..., Served], tmp_path: Path
) -> None:
    authority = make_authority(tmp_path / "ca")
    certificate = authority.sign("provider", "IP:127.0.0.1")
    with oidc_provider(certificate=certificate) as provider:
        for ca_file, status in ((None, 502), (authority.certificate, 303)):
            settings = sso_settings(platform_env, provider.issuer, sso_ca_file=ca_file)
            browser = Browser(serve(settings, port=urlsplit(settings.public_url).port).url)
            page = browser.http.get(START)
            assert page.status_code == status
            if status == 502:
                assert "CERTIFICATE_VERIFY_FAILED" in line_of(page)
            browser.http.close()


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"sso_issuer": "idp.example"}, "TIGHTSHIP_SSO_ISSUER is 'idp.example'; expected an https:// URL"),
        ({"sso_issuer": "http://idp.example"}, "TIGHTSHIP_SSO_ISSUER"),
        ({"sso_issuer": "https://idp.example/?a=b"}, "TIGHTSHIP_SSO_ISSUER"),
        ({"public_url": ""}, "TIGHTSHIP_PUBLIC_URL is ''; expected the address that people type"),
        ({"sso_client_id": ""}, "TIGHTSHIP_SSO_CLIENT_ID is ''"),
        ({"sso_groups": ""}, "TIGHTSHIP_SSO_GROUPS is ''; expected at least one GROUP=SCOPE"),
        ({"sso_groups": "it"}, "An entry of TIGHTSHIP_SSO_GROUPS is 'it'; expected GROUP=SCOPE"),
        ({"sso_groups": "=read"}, "An entry of TIGHTSHIP_SSO_GROUPS"),
        ({"sso_groups": "it=ingest"}, "with scopes out of read, capture, apply, admin"),
        ({"sso_groups": "it=capture"}, "the scope 'read' or 'admin' in it"),
        ({"sso_groups": "it=admin@vision"}, "no team with the scope 'admin'"),
        ({"sso_groups": "it=read@"}, "The team in TIGHTSHIP_SSO_GROUPS is ''"),
        ({"sso_groups": "it=read;it=admin"}, "a group that comes twice, is 'it'"),
        ({"sso_oidc_scopes": "profile"}, "TIGHTSHIP_SSO_OIDC_SCOPES"),
        ({"sso_session_h": 0}, "TIGHTSHIP_SSO_SESSION_H is 0"),
        ({"sso_ca_file": Path("/nowhere/ca.pem")}, "TIGHTSHIP_SSO_CA_FILE is '/nowhere/ca.pem'"),
    ],
    ids=repr,
)
def test_what_is_set_up_in_part_is_one_line(platform_env: Any, changes: dict[str, Any], line: str) -> None:
    with pytest.raises(Invalid, match=re.escape(line)):
        create_app(sso_settings(platform_env, "https://idp.example", **changes))


def test_a_server_with_single_sign_on_is_not_open(platform_env: Any) -> None:
    app = create_app(replace(sso_settings(platform_env, "https://idp.example"), token=""), host="0.0.0.0")
    assert app.state.access.local_token == "", "nobody gets in but by logging in, or with a token"
