"""Who gets in: tokens and their scopes, loopback and its user, web pages of others, the login of the dashboard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest
from api_calls import HOST, Served, ok, refused, run_record
from sqlalchemy import select
from waiting import PATIENCE_S

from tightship_platform.api import auth
from tightship_platform.api.app import create_app
from tightship_platform.api.auth import (
    ENVIRONMENT_LEAST,
    LAST_USED_EVERY_NS,
    create_token,
    hash_token,
    list_tokens,
    revoke_token,
    rotate_token,
)
from tightship_platform.database.engine import Database
from tightship_platform.database.models import Audit, Token
from tightship_platform.errors import Conflict, Invalid, NotFound
from tightship_platform.token_file import is_loopback
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import Scope

ADMIN = "admin-token-of-tests"
DAY_NS = 86_400 * NS_PER_S


@pytest.fixture
def closed(platform_env: Any, serve: Callable[..., Served]) -> Served:
    """A server with TIGHTSHIP_TOKEN set."""
    return serve(replace(platform_env.settings, token=ADMIN))


def token(served: Served, *scopes: Scope, name: str = "t") -> str:
    with served.database.session() as session:
        return create_token(session, name, scopes)


# ---- tokens in the database ------------------------------------------------------------------------------------------


def test_only_the_hash_of_a_token_is_kept(database: Database) -> None:
    with database.session() as session:
        made = create_token(session, "ci", [Scope.READ, Scope.INGEST, Scope.READ])
    assert made.startswith("ts_")
    assert len(made) > 40
    with database.session() as session:
        row = session.scalars(select(Token)).one()
        assert row.sha256 == hash_token(made)
        assert made not in repr(vars(row))
        assert row.scopes == ["ingest", "read"]
        assert [t.name for t in list_tokens(session)] == ["ci"]


def test_names_are_taken_once_and_checked(database: Database) -> None:
    with database.session() as session:
        create_token(session, "ci", [Scope.READ])
    with pytest.raises(Conflict, match="'ci' exists"), database.session() as session:
        create_token(session, "ci", [Scope.READ])
    for name in ("", " ", "a\nb", "x" * 201, "\x1b[31m"):
        with pytest.raises(Invalid), database.session() as session:
            create_token(session, name, [Scope.READ])
    with pytest.raises(Invalid, match="Scopes"), database.session() as session:
        create_token(session, "none", [])
    with pytest.raises(NotFound), database.session() as session:
        revoke_token(session, "nobody")
    with database.session() as session:
        assert len(list_tokens(session)) == 1


def test_what_is_done_to_tokens_is_written_down_once(database: Database) -> None:
    with database.session() as session:
        create_token(session, "ci", [Scope.READ], actor="ann")
        revoke_token(session, "ci", actor="bob")
        revoke_token(session, "ci", actor="bob")
    with database.session() as session:
        rows = session.scalars(select(Audit).order_by(Audit.id)).all()
        assert [(row.actor, row.action, row.target) for row in rows] == [
            ("ann", "token.create", "ci"),
            ("bob", "token.revoke", "ci"),
        ]
        assert rows[0].detail == {"scopes": ["read"]}


def test_an_expired_token_is_refused_with_the_reason(closed: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with closed.database.session() as session:
        made = create_token(session, "shift", [Scope.READ, Scope.ADMIN], lifetime_ns=30 * DAY_NS)
        created = list_tokens(session)[0].created_ns
        assert list_tokens(session)[0].expires_ns == created + 30 * DAY_NS
    with closed.http(made) as http:
        ok(http.get("/runs"))
        monkeypatch.setattr(auth, "now_ns", lambda: created + 30 * DAY_NS - 1)
        ok(http.get("/runs"))
        monkeypatch.setattr(auth, "now_ns", lambda: created + 30 * DAY_NS)
        refused(http.get("/runs"), 401, "'shift' expired at 2", "tightship token rotate")
        refused(http.post("/runs", json=run_record()), 401, "expired")
        assert http.get("/health").status_code == 200
    with browser(closed) as pages:
        answer = pages.post("/login", data={"token": made})
        assert (answer.status_code, "has expired" in answer.text) == (401, True)


def test_an_expired_token_does_not_open_a_server(
    platform_env: Any, serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(platform_env.settings).database.session() as session:
        create_token(session, "shift", [Scope.READ], lifetime_ns=DAY_NS)
    monkeypatch.setattr(auth, "now_ns", lambda: now_ns() + 2 * DAY_NS)
    with serve(platform_env.settings).http("") as http:
        refused(http.get("/runs"), 401)


def test_a_rotated_token_has_the_name_the_scopes_and_the_lifetime_of_the_old_one(closed: Served) -> None:
    with closed.database.session() as session:
        old = create_token(session, "ci", [Scope.READ], lifetime_ns=DAY_NS)
    with closed.http(old) as http:
        ok(http.get("/runs"))
    with closed.database.session() as session:
        new = rotate_token(session, "ci", actor="ann")
    with closed.http(old) as http:
        refused(http.get("/runs"), 401)
    with closed.http(new) as http:
        ok(http.get("/runs"))
        refused(http.post("/runs", json=run_record()), 403, "it has: read")
    with closed.database.session() as session:
        (row,) = list_tokens(session)
        assert row.expires_ns == row.created_ns + DAY_NS
        rotate_token(session, "ci", lifetime_ns=2 * DAY_NS)
        (row,) = list_tokens(session)
        assert row.expires_ns == row.created_ns + 2 * DAY_NS
        actions = session.scalars(select(Audit.action).order_by(Audit.id)).all()
        assert [action for action in actions if action != "token.refuse"] == [
            "token.create",
            "token.rotate",
            "token.rotate",
        ]
        revoke_token(session, "ci")
    for name, fault in (("ci", Conflict), ("nobody", NotFound)):
        with pytest.raises(fault), closed.database.session() as session:
            rotate_token(session, name)


@pytest.mark.parametrize("lifetime_ns", [0, -1, 40_000 * 86_400 * 10**9, 10**30])
def test_a_lifetime_that_is_none_is_refused(database: Database, lifetime_ns: int) -> None:
    with pytest.raises(Invalid, match="--expires is"), database.session() as session:
        create_token(session, "ci", [Scope.READ], lifetime_ns=lifetime_ns)
    with database.session() as session:
        assert list_tokens(session) == []


def test_a_stored_scope_that_this_release_does_not_know_grants_nothing(closed: Served) -> None:
    made = token(closed, Scope.READ)
    with closed.database.session() as session:
        session.scalars(select(Token)).one().scopes = ["read", "teleport", 7, None]
    with closed.http(made) as http:
        ok(http.get("/runs"))
        refused(http.post("/runs", json=run_record()), 403, "'ingest'", "it has: read")


# ---- tokens over HTTP ------------------------------------------------------------------------------------------------


def test_a_token_opens_what_its_scopes_say_until_it_is_revoked(closed: Served) -> None:
    made = token(closed, Scope.INGEST)
    with closed.http(made) as http:
        ok(http.post("/runs", json=run_record()))
        refused(http.get("/runs"), 403, "'t'", "'read'")
        with closed.database.session() as session:
            revoke_token(session, "t")
        answer = http.post("/runs", json=run_record())
        refused(answer, 401, "does not know the token that was sent", "revoked", "tightship token create")
        assert answer.headers["www-authenticate"] == "Bearer"


def test_admin_and_the_token_of_the_environment_may_do_everything(closed: Served) -> None:
    for secret in (ADMIN, token(closed, Scope.ADMIN)):
        with closed.http(secret) as http:
            ok(http.post("/runs", json=run_record()))
            ok(http.get("/runs"))
            ok(http.post("/captures", json={"target": "vision"}))


@pytest.mark.parametrize(
    ("header", "words"),
    [
        *((header, "requires a token") for header in ("", "Bearer", f"Basic {ADMIN}", ADMIN)),
        *((f"Bearer {wrong}", "does not know the token") for wrong in ("wrong", f"{ADMIN}x", "x" * 5000)),
    ],
)
def test_what_is_no_token_opens_nothing_and_a_wrong_one_is_not_called_missing(
    closed: Served, header: str, words: str
) -> None:
    with closed.http() as http:
        refused(http.get("/runs", headers={"authorization": header} if header else {}), 401, words)


def test_bytes_that_are_no_text_are_no_token(closed: Served) -> None:
    host, port = closed.url.removeprefix("http://").split(":")
    connection = HTTPConnection(host, int(port))
    connection.putrequest("GET", "/api/v1/runs")
    connection.putheader("Authorization", b"Bearer \xff\xfe\x80")
    connection.putheader("Cookie", b'tightship_token=\xff"; =;;')
    connection.endheaders()
    assert connection.getresponse().status == 401
    connection.close()


def test_the_last_use_is_noted_at_most_once_a_minute(closed: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    made = token(closed, Scope.READ)
    clock = [1_800_000_000_000_000_000]
    monkeypatch.setattr(auth, "now_ns", lambda: clock[0])
    seen = []
    with closed.http(made) as http:
        for step in (0, 1, LAST_USED_EVERY_NS - 2, 1, 5):
            clock[0] += step
            ok(http.get("/runs"))
            with closed.database.session() as session:
                seen.append(list_tokens(session)[0].last_used_ns)
    start = 1_800_000_000_000_000_000
    assert seen == [start, start, start, start + LAST_USED_EVERY_NS, start + LAST_USED_EVERY_NS]


# ---- open and closed -------------------------------------------------------------------------------------------------


def test_loopback_takes_the_token_of_its_user_and_no_request_without_one(
    platform_env: Any, serve: Callable[..., Served]
) -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        served = serve(platform_env.settings, host)
        with served.http() as http, served.http("") as nobody:
            ok(http.get("/runs"))
            ok(http.post("/runs", json=run_record()))
            refused(nobody.get("/runs"), 401, "TIGHTSHIP_HOME")
            refused(nobody.post("/runs", json=run_record()), 401)


def test_a_server_that_others_can_reach_needs_a_token(platform_env: Any, serve: Callable[..., Served]) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.7", "example.org", ""):
        with pytest.raises(Conflict, match=r"no token exists; make one with `tightship token create"):
            create_app(platform_env.settings, host=host)
    served = serve(replace(platform_env.settings, token=ADMIN), "0.0.0.0")
    with served.http() as http:
        refused(http.get("/runs"), 401)


def test_a_server_that_others_can_reach_takes_no_token_that_can_be_guessed(
    platform_env: Any, serve: Callable[..., Served]
) -> None:
    weak = "ab" * (ENVIRONMENT_LEAST // 2 - 1) + "c"
    expected = rf"TIGHTSHIP_TOKEN is '{len(weak)} characters, not shown'; expected at least {ENVIRONMENT_LEAST}"
    with pytest.raises(Invalid, match=expected):
        create_app(replace(platform_env.settings, token=weak), host="0.0.0.0")
    with pytest.raises(Invalid, match=expected):
        create_app(replace(platform_env.settings, token=weak, public_url="https://tightship.example"))
    for token_, host in ((weak, "127.0.0.1"), (weak + "d", "0.0.0.0")):
        with serve(replace(platform_env.settings, token=token_), host).http(token_) as http:
            ok(http.get("/runs"))


def test_a_server_takes_other_tokens_beside_that_of_its_user(platform_env: Any, serve: Callable[..., Served]) -> None:
    first = serve(platform_env.settings)
    made = token(first, Scope.READ)
    second = serve(platform_env.settings, "0.0.0.0")
    for served in (first, second):
        with served.http(made) as http:
            ok(http.get("/runs"))
            refused(http.post("/runs", json=run_record()), 403)
    with first.http() as http, second.http(first.local_token) as elsewhere:
        ok(http.get("/runs"))
        refused(elsewhere.get("/runs"), 401)
    with first.database.session() as session:
        revoke_token(session, "t")
    with first.http(made) as http:
        refused(http.get("/runs"), 401)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("localhost.example.org", False),
        ("127.0.0.1.nip.io", False),
        ("", False),
    ],
)
def test_what_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.nip.io:8050", "10.1.2.3", "", "localhost.evil:1", "["])
def test_a_name_that_was_pointed_at_loopback_opens_nothing(served: Served, host: str) -> None:
    with served.http() as http:
        if host not in ("", "["):
            refused(http.get("/runs", headers={"host": host}), 403, "own machine")
        assert http.get("/health", headers={"host": host}).status_code in (400, 403)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1", "[::1]:8050", "LOCALHOST"])
def test_every_name_of_loopback_is_fine(served: Served, host: str) -> None:
    with served.http() as http:
        ok(http.get("/runs", headers={"host": host}))


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1", "http://127.0.0.1:1", "file://", "http://[", ""]
)
def test_a_page_of_another_origin_changes_nothing(served: Served, closed: Served, origin: str) -> None:
    for http in (served.http(), closed.http(), closed.http(ADMIN)):
        with http:
            for answer in (
                http.post("/runs", json=run_record(), headers={"origin": origin}),
                http.post("/captures", content=b"{}", headers={"origin": origin, "content-type": "text/plain"}),
            ):
                refused(answer, 403, "are refused")
    with served.http() as http:
        assert ok(http.get("/runs", headers={"origin": origin})) == []  # it may ask; without CORS it cannot read


def test_a_page_of_the_server_itself_may_act(served: Served) -> None:
    with served.http(origin=served.url) as http:
        ok(http.post("/runs", json=run_record()))


@pytest.mark.parametrize(
    "header", ["Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP"]
)
def test_with_the_token_of_its_user_nobody_comes_through_a_proxy(served: Served, closed: Served, header: str) -> None:
    """A proxy may write the server's own address into Host, as nginx does by default, and let in anybody."""
    for value in ("127.0.0.1", "", "203.0.113.9"):
        with served.http() as http:
            refused(
                http.get("/runs", headers={header: value}), 403, "not through a proxy", header.lower(), "token create"
            )
            refused(http.post("/runs", json=run_record(), headers={header: value}), 403, "not through a proxy")
        with closed.http(ADMIN) as http:
            ok(http.get("/runs", headers={header: value}))


# ---- the login of the pages ------------------------------------------------------------------------------------------


def browser(served: Served, **more: Any) -> httpx.Client:
    headers = {"accept": "text/html,application/xhtml+xml"}
    return httpx.Client(base_url=served.url, headers=headers, trust_env=False, timeout=PATIENCE_S, **more)


def test_a_browser_is_sent_to_the_login_and_back(closed: Served) -> None:
    made = token(closed, Scope.READ)
    with browser(closed) as pages:
        answer = pages.get("/runs?workflow=a%26b")
        assert answer.status_code == 303
        assert answer.headers["location"] == "/login?next=%2Fruns%3Fworkflow%3Da%2526b"
        form = pages.get(answer.headers["location"])
        assert form.status_code == 200
        assert 'value="/runs?workflow=a%26b"' in form.text
        answer = pages.post("/login", data={"token": made, "next": "/runs?workflow=a%26b"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/runs?workflow=a%26b")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert pages.get("/runs").status_code in (200, 404)  # let in: the dashboard's page, or none is installed
        assert pages.get("/api/v1/runs").status_code == 200
        assert pages.post("/api/v1/captures", json={"target": "x"}).status_code == 403
        assert pages.get("/logout").status_code == 303
        assert pages.get("/runs").status_code == 303


def test_a_wrong_token_gets_no_cookie(closed: Served) -> None:
    ingest = token(closed, Scope.INGEST)
    with browser(closed) as pages:
        for given, status in (("", 401), ("wrong", 401), (ingest, 403), ("<script>", 401)):
            answer = pages.post("/login", data={"token": given})
            assert answer.status_code == status
            assert "set-cookie" not in answer.headers
            assert "<script>" not in answer.text
        assert pages.post("/login", data={"token": ADMIN}, headers={"origin": "http://evil.example"}).status_code == 403
        assert pages.post("/login", content=b"x" * 100_000).status_code == 413


def test_a_cookie_of_a_revoked_token_opens_nothing(closed: Served) -> None:
    made = token(closed, Scope.READ)
    with browser(closed) as pages:
        pages.post("/login", data={"token": made})
        with closed.database.session() as session:
            revoke_token(session, "t")
        assert pages.get("/").status_code == 303


@pytest.mark.parametrize(
    "target", ["//evil.example", "https://[", "/\\evil.example", "javascript:alert(1)", "/a\nb", "", "\\\\x"]
)
def test_the_login_leads_nowhere_else(closed: Served, target: str) -> None:
    with browser(closed) as pages:
        answer = pages.post("/login", data={"token": ADMIN, "next": target})
        assert answer.headers["location"] == "/"
        form = pages.get("/login", params={"next": target + '"><b>'})
        assert "evil" not in form.text
        assert '"><b>' not in form.text


def test_a_cookie_is_not_taken_from_another_origin(closed: Served) -> None:
    with browser(closed) as pages:
        pages.post("/login", data={"token": ADMIN})
        refused(pages.post("/api/v1/runs", json=run_record(), headers={"origin": "http://evil.example"}), 403)
        ok(pages.post("/api/v1/runs", json=run_record(), headers={"origin": closed.url}))


def test_a_token_in_a_query_opens_nothing(closed: Served) -> None:
    """It would stand in logs and histories."""
    with closed.http() as http:
        refused(http.get("/runs", params={"token": ADMIN, "access_token": ADMIN}), 401)


def test_the_settings_take_no_token_that_no_header_could_carry() -> None:
    from tightship_platform.settings import load_settings

    for bad in ("with space", "line\nbreak", "naïve"):
        with pytest.raises(Invalid) as refusal:
            load_settings({"TIGHTSHIP_TOKEN": bad})
        assert bad not in str(refusal.value)


def test_without_the_table_of_tokens_nobody_gets_in(closed: Served) -> None:
    made = token(closed, Scope.ADMIN)
    with closed.database.session() as session:
        session.connection().exec_driver_sql("DROP TABLE token")
    with closed.http(made) as http:
        answer = http.get("/runs")
        refused(answer, answer.status_code)
        assert answer.status_code in (500, 503)


def test_the_agents_token_may_not_read(closed: Served) -> None:
    made = token(closed, Scope.INGEST, name="agent")
    with closed.http(made) as http:
        body = {"host": HOST, "runs": []}
        assert ok(http.post("/captures/lease", json=body)) == {"leases": [], "stacks": []}
        refused(http.get("/hosts"), 403)
