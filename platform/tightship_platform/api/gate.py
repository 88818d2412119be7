"""The outermost layer of the server: who is calling, and are they let in at all?

Every request passes here first, the dashboard's included. Routes under the API's prefix check their own scope
afterwards (`scopes.ScopedRoute`); every other path needs `read`, whether or not its author thought of it, except the
few in `PUBLIC`.
"""

from __future__ import annotations

import re
from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as Connection

from tightship_platform.api import sso
from tightship_platform.api.auth import LOOPBACK, Access, Caller, require, set_caller
from tightship_platform.api.errors import as_response, outside_of_routes
from tightship_platform.api.rates import Rates
from tightship_platform.api.recalled_tokens import RecalledTokens
from tightship_platform.api.refusals import Refusals
from tightship_platform.client import API
from tightship_platform.errors import Forbidden, TightshipError, Unauthorized
from tightship_platform.token_file import is_loopback
from tightship_platform.vocabulary import Scope

COOKIE = "tightship_token"
"""Holds the token, or the secret of the session, of a browser that logged in."""
PUBLIC = ("/login", "/logout", sso.START, sso.CALLBACK)
"""Pages outside the API that need no scope."""
PROBED = (f"{API}/live", f"{API}/ready")
"""Routes for which nobody's token is looked up: they answer also when the database does not."""
DELIVERIES = (f"{API}/hosts/heartbeat", f"{API}/batches", f"{API}/captures/lease")
"""Routes that agents call all the time."""
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/@?#\s]+)(:\d+)?", re.IGNORECASE | re.ASCII)
_BY_PROXY = re.compile(r"forwarded|via|x-real-ip|x-forwarded-.*", re.ASCII)
"""Headers that proxies add."""
_SAFE = ("GET", "HEAD", "OPTIONS")


class Gate:
    """ASGI layer that recognises the caller and turns away whom no route should see."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        recalled: RecalledTokens,
        refusals: Refusals,
        rates: Rates,
        public_url: str = "",
    ) -> None:
        self.app = app
        self.access = access
        self.recalled = recalled
        self.refusals = refusals
        self.rates = rates
        self.public_url = public_url

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        if connection["type"] not in ("http", "websocket"):
            await self.app(connection, receive, send)
            return
        refusal = await self._refusal(HTTPConnection(connection))
        if refusal is None:
            await self.app(connection, receive, send)
        elif connection["type"] == "websocket":
            await send({"type": "websocket.close", "code": 4401, "reason": "not allowed"})
        else:
            await refusal(connection, receive, send)

    async def _refusal(self, request: HTTPConnection) -> Response | None:
        """The answer to somebody who is not let in; None: they are."""
        set_caller(None)
        path = request.scope["path"]
        try:
            _same_origin(request, self.public_url)
            token = "" if path in PROBED else _token(request)
            caller = await self._recognise(request, token) if token else None
            set_caller(caller, is_unknown=bool(token) and caller is None)
            if caller is not None:
                self.rates.take(caller.name, str(caller))
            if not path.startswith(API + "/") and path not in PUBLIC:
                require(Scope.READ)
        except Unauthorized as error:
            if _wants_page(request):
                return RedirectResponse(f"/login?next={quote(_target(request), safe='')}", status_code=303)
            return as_response(error)
        except (TightshipError, PoolTimeout, DBAPIError) as error:
            return outside_of_routes(error)
        return None

    async def _recognise(self, request: HTTPConnection, token: str) -> Caller | None:
        if request.scope["path"] in DELIVERIES:
            caller = await self.recalled.caller(token)
            if caller is LOOPBACK:
                require_direct(request)
            if caller is not None:
                return caller
        return await run_in_threadpool(self._look_up, token, request)

    def _look_up(self, token: str, request: HTTPConnection) -> Caller | None:
        caller = self.access.recognise(token)
        if caller is LOOPBACK and request.scope["path"] not in PUBLIC:
            require_direct(request)
        if caller is None:
            self.refusals.note("unknown", "", request)
        elif caller.expired_ns is not None:
            self.refusals.note("expired", caller.name, request)
        return caller


def require_direct(request: HTTPConnection) -> None:
    """The token of this machine's user is good for requests that come straight from it, by its own name.

    :raises Forbidden: this one comes through a proxy, from elsewhere, or for another name (DNS rebinding).
    """
    passed_on = next((name for name in request.headers if _BY_PROXY.fullmatch(name)), None)
    if passed_on is not None:
        raise Forbidden(
            f"This token is good on the server's own machine, not through a proxy (the request carries {passed_on!r}); "
            "make one with `tightship token create`"
        )
    peer = request.client.host if request.client else ""
    match = _HOST.fullmatch(request.headers.get("host", ""))
    named = match[1].strip("[]").lower() if match else ""
    if not is_loopback(peer) or not is_loopback(named):
        raise Forbidden(
            f"This token is good on the server's own machine, not from {peer!r} for {named!r}; "
            "make one with `tightship token create`"
        )


def _same_origin(request: HTTPConnection, public_url: str) -> None:
    """A web page of another origin must not act with what the browser holds here (cookie, loopback).

    :raises Forbidden: the request comes from such a page.
    """
    if request.scope["type"] == "http" and request.scope["method"] in _SAFE:
        return
    origin = request.headers.get("origin")
    if origin is None:
        return  # no browser: they send it with everything that may change something
    if public_url:
        # A proxy may have put any Host into the request; the browser's Origin is what it shows its user.
        if origin.lower() != public_url:
            raise Forbidden(f"Requests from pages of {origin[:100]!r} are refused; use the pages of {public_url}")
        return
    # Not the scheme: before a proxy that ends TLS, the page is https and this server sees http.
    scheme, _, host = origin.lower().partition("://")
    if scheme not in ("http", "https") or not host or host != request.headers.get("host", "").lower():
        raise Forbidden(f"Requests from pages of {origin[:100]!r} are refused; use the server's own pages")


def local_cookie(request: HTTPConnection) -> str:
    """Name of the cookie of this machine's user, who may have several servers: browsers tell no ports apart."""
    return f"{COOKIE}_{request.scope['server'][1]}"


def _token(request: HTTPConnection) -> str:
    headers = request.headers
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    try:
        cookies = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return ""
    cookie = cookies.get(local_cookie(request)) or cookies.get(COOKIE)
    return cookie.value if cookie else ""


def _wants_page(request: HTTPConnection) -> bool:
    return (
        request.scope["type"] == "http"
        and request.scope["method"] == "GET"
        and not request.scope["path"].startswith(API + "/")
        and "text/html" in request.headers.get("accept", "")
    )


def _target(request: HTTPConnection) -> str:
    query = request.url.query
    return request.url.path + (f"?{query}" if query else "")
