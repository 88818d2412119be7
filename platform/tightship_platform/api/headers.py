"""What every answer tells a browser about how little to do with it."""

from __future__ import annotations

import base64
import hashlib

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


def content_policy(**sources: str) -> str:
    """A Content-Security-Policy that permits these sources (`script_src="'self'"`), nothing else and no frames."""
    own = [f"{name.replace('_', '-')} {value}" for name, value in sources.items()]
    return "; ".join(["default-src 'none'", *own, "base-uri 'none'", "form-action 'self'", "frame-ancestors 'none'"])


def inline_source(text: str) -> str:
    """The source of a Content-Security-Policy that permits exactly this inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


HEADERS = {
    "content-security-policy": content_policy(),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    # With `no-referrer` a browser would send `Origin: null` with the login's form, which the gate refuses.
    "referrer-policy": "same-origin",
}
"""On every answer; a page that needs more of its policy sets its own."""


class SecurityHeaders:
    """ASGI layer around all others, those that answer for a fault included."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, sending)
