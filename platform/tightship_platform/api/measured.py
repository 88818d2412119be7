"""The outermost layer: gives each request its id, counts it, and measures how long its answer took."""

from __future__ import annotations

import re
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tightship_platform.api.gate import DELIVERIES
from tightship_platform.client import API, REQUEST_ID, new_request_id, set_request_id
from tightship_platform.processes.metrics import METRICS

_ID = re.compile(r"[A-Za-z0-9-]{8,64}", re.ASCII)
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")


class Measured:
    """ASGI layer; see above."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = given if _ID.fullmatch(given) else new_request_id()
        set_request_id(request_id)
        status = 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).setdefault(REQUEST_ID, request_id)
            await send(message)

        began_s = time.perf_counter()
        METRICS.count("tightship_requests_in_progress")
        try:
            await self.app(scope, receive, sending)
        finally:
            METRICS.count("tightship_requests_in_progress", by=-1)
            route, method = _route(scope), scope["method"] if scope["method"] in _METHODS else "other"
            METRICS.count("tightship_requests_total", method, route, str(status))
            METRICS.observe("tightship_request_seconds", time.perf_counter() - began_s, route)


def _route(scope: Scope) -> str:
    """The pattern of the path, not the path: what somebody invents must make no new figure."""
    if scope["path"] in DELIVERIES:
        return str(scope["path"])
    path = getattr(scope.get("route"), "path", None)
    if isinstance(path, str) and scope["path"].startswith((API + "/", "/metrics", "/log")):
        return path
    return "unknown" if scope["path"].startswith(API + "/") else "page"
