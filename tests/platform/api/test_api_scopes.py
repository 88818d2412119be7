"""Every route of the server, the dashboard's included, needs a scope, and gets it checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from api_calls import Served
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute
from waiting import PATIENCE_S

from tightship_platform.api.auth import create_token
from tightship_platform.api.gate import PROBED
from tightship_platform.api.scopes import declared, needs, route_scopes, scoped_router
from tightship_platform.client import API
from tightship_platform.vocabulary import Scope

OPEN = {*PROBED, f"{API}/health"}
"""Routes of the API that answer without a token."""
PUBLIC = {*OPEN, "/login", "/login/sso", "/login/sso/callback", "/logout"}
NEEDED = {
    ("POST", "/hosts/heartbeat"): Scope.INGEST,
    ("POST", "/hosts/enrol"): Scope.ENROL,
    ("POST", "/runs"): Scope.INGEST,
    ("POST", "/batches"): Scope.INGEST,
    ("POST", "/captures"): Scope.CAPTURE,
    ("POST", "/captures/lease"): Scope.INGEST,
    ("POST", "/captures/{key}/report"): Scope.INGEST,
    ("PUT", "/captures/{key}/traces/{rank}"): Scope.INGEST,
    ("GET", "/ids"): Scope.READ,
    ("GET", "/runs"): Scope.READ,
    ("GET", "/runs/{key}"): Scope.READ,
    ("GET", "/runs/{key}/timeline"): Scope.READ,
    ("PATCH", "/runs/{key}"): Scope.APPLY,
    ("GET", "/runs/{key}/stacks"): Scope.READ,
    ("POST", "/runs/{key}/stacks"): Scope.CAPTURE,
    ("POST", "/runs/{key}/stacks/answer"): Scope.INGEST,
    ("GET", "/captures"): Scope.READ,
    ("GET", "/captures/{key}"): Scope.READ,
    ("GET", "/captures/{key}/analysis"): Scope.READ,
    ("POST", "/captures/{key}/analysis"): Scope.CAPTURE,
    ("POST", "/captures/{key}/cancel"): Scope.CAPTURE,
    ("GET", "/traces/{key}/file"): Scope.READ,
    ("GET", "/store"): Scope.READ,
    ("GET", "/audit"): Scope.ADMIN,
    ("GET", "/collection"): Scope.READ,
    ("DELETE", "/runs/{key}"): Scope.DELETE,
    ("DELETE", "/workflows/{name:path}"): Scope.DELETE,
    ("DELETE", "/users/{name:path}"): Scope.DELETE,
    ("DELETE", "/teams/{name:path}"): Scope.DELETE,
    ("GET", "/findings"): Scope.READ,
    ("GET", "/findings/{key}"): Scope.READ,
    ("GET", "/opportunities"): Scope.READ,
    ("GET", "/hosts"): Scope.READ,
    ("GET", "/workflows"): Scope.READ,
    ("GET", "/fleets"): Scope.READ,
    ("POST", "/fleets/{name}"): Scope.INGEST,
    ("POST", "/fleets/{name}/parts"): Scope.INGEST,
    ("POST", "/fleets/{name}/captures"): Scope.INGEST,
    ("PUT", "/fleets/{name}/captures/{key}/traces/{rank}"): Scope.INGEST,
    ("GET", "/account"): Scope.READ,
    ("GET", "/samples"): Scope.READ,
    ("POST", "/prometheus/write"): Scope.INGEST,
    ("POST", "/otlp/v1/metrics"): Scope.INGEST,
    ("GET", "/openapi.json"): Scope.READ,
    ("POST", "/workflows/{name:path}/schedule"): Scope.CAPTURE,
    ("POST", "/opportunities/{key}/apply"): Scope.APPLY,
    ("POST", "/opportunities/{key}/launch"): Scope.APPLY,
    ("POST", "/opportunities/{key}/dismiss"): Scope.APPLY,
    ("POST", "/opportunities/{key}/reopen"): Scope.APPLY,
    ("GET", "/actions"): Scope.READ,
    ("GET", "/verify"): Scope.READ,
}


@pytest.fixture
def closed(platform_env: Any, serve: Callable[..., Served]) -> Iterator[Served]:
    """A server that asks for tokens: `admin-token-of-tests` is one."""
    yield serve(replace(platform_env.settings, token="admin-token-of-tests"))


def requests(app: FastAPI) -> Iterator[tuple[str, str]]:
    """One method and path for every route; every parameter is 1."""
    for path, methods, _ in route_scopes(app):
        filled = "/".join("1" if part.startswith("{") else part for part in path.split("/"))
        for method in sorted(methods - {"HEAD", "OPTIONS"}) or ["GET"]:
            yield method, filled


def test_the_api_has_these_routes_with_these_scopes(closed: Served) -> None:
    found = {
        (method, path.removeprefix(API)): scope
        for path, methods, scope in route_scopes(closed.app)
        if path.startswith(API + "/") and path not in PUBLIC
        for method in methods - {"HEAD"}
    }
    assert found == NEEDED


def test_every_route_declares_its_scope(closed: Served) -> None:
    rows = list(route_scopes(closed.app))
    assert len(rows) > len(NEEDED)
    assert [row for row in rows if row[2] is None] == []
    assert {path for path, _, scope in rows if scope == "public"} == PUBLIC


def test_without_a_token_every_route_is_closed(closed: Served) -> None:
    with httpx.Client(base_url=closed.url, trust_env=False, timeout=PATIENCE_S) as http:
        asked = list(requests(closed.app))
        for method, path in asked:
            if path not in PUBLIC:
                answer = http.request(method, path)
                assert answer.status_code == 401, f"{method} {path} answers {answer.status_code}"
                assert "TIGHTSHIP_TOKEN" in answer.json()["error"]
        for path in PUBLIC:
            assert http.get(path).status_code in ((404,) if "sso" in path else (200, 303))


def test_a_token_without_the_scope_is_refused_on_every_route(closed: Served) -> None:
    for scope in (Scope.INGEST, Scope.READ, Scope.CAPTURE, Scope.APPLY):
        with closed.database.session() as session:
            token = create_token(session, f"only {scope}", [scope])
        with closed.http(token) as http:
            for (method, path), needed in NEEDED.items():
                filled = "/".join("1" if part.startswith("{") else part for part in path.split("/"))
                status = http.request(method, filled).status_code
                assert (status == 403) == (needed is not scope), f"{scope} {method} {path}: {status}"


def test_what_nobody_routed_is_closed_too(closed: Served) -> None:
    with httpx.Client(base_url=closed.url, trust_env=False, timeout=PATIENCE_S) as http:
        for path in ("/", "/nowhere", f"{API}x", "/_dash-update-component", "//login", "/login/", "/LOGIN"):
            assert http.get(path).status_code == 401, path


@pytest.mark.parametrize(
    "path", [f"{API}/../runs", f"{API}/%2e%2e/", "/login/../", "/login%2f..%2fruns", "/./", f"{API}%2fruns"]
)
def test_a_path_written_in_another_way_opens_nothing(closed: Served, path: str) -> None:
    # httpx would tidy the path up; the socket does not.
    import socket

    host, port = closed.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        status = int(connection.makefile("rb").readline().split()[1])
    assert status in (401, 404)


def test_a_route_without_a_scope_cannot_be_written(closed: Served) -> None:
    router = scoped_router("test")
    with pytest.raises(TypeError, match="declares no scope"):
        router.get("/forgotten")(lambda: None)


def test_the_enumeration_sees_what_others_add(closed: Served) -> None:
    """The tests above rest on it."""

    def hello() -> str:
        return "hello"

    async def page(_request: Any) -> PlainTextResponse:
        return PlainTextResponse("page")

    app = FastAPI(openapi_url=None)
    inner = FastAPI(openapi_url=None)
    inner.add_api_route("/inside", hello)
    app.add_api_route(f"{API}/forgotten", hello)
    app.add_api_route(f"{API}/open", hello, dependencies=[needs(None)])
    app.add_api_route(f"{API}/read", hello, dependencies=[needs(Scope.READ)])
    app.add_api_route("/page", hello)
    app.router.routes.append(Route("/plain", page))
    app.router.routes.append(Route(f"{API}/plain", page))
    app.router.routes.append(Mount(f"{API}/mounted", inner))
    app.router.routes.append(WebSocketRoute(f"{API}/socket", page))
    assert {path: scope for path, _, scope in route_scopes(app)} == {
        f"{API}/forgotten": None,
        f"{API}/open": "public",
        f"{API}/read": Scope.READ,
        "/page": Scope.READ,
        "/plain": Scope.READ,
        f"{API}/plain": None,
        f"{API}/mounted/inside": None,
        f"{API}/socket": None,
    }


def test_the_openapi_document_names_every_route_and_body(closed: Served) -> None:
    with closed.http("admin-token-of-tests") as http:
        document = http.get("/openapi.json").json()
    documented = {
        (method.upper(), path.removeprefix(API)) for path, item in document["paths"].items() for method in item
    }
    expected = {(m, p.replace(":path", "")) for m, p in NEEDED if p != "/openapi.json"}
    assert documented == expected | {("GET", path.removeprefix(API)) for path in OPEN}
    assert {"RunRecord", "Batch", "Heartbeat", "CaptureRequest", "LeaseRequest", "CaptureReport"} <= set(
        document["components"]["schemas"]
    )
    for path, item in document["paths"].items():
        for method, operation in item.items():
            assert operation["description"], f"{method} {path}"
            if path not in OPEN:
                assert "Needs the scope `" in operation["description"]
                assert operation["security"]


def test_a_route_with_two_declarations_declares_nothing() -> None:
    route = APIRoute("/x", lambda: None, dependencies=[needs(Scope.READ), needs(None)])
    assert declared(route) is None
