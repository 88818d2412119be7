"""How much of a body the server takes into memory.

Routes of the API read theirs themselves (`scopes.ScopedRoute`, and uploads piece by piece). The body of any other
request is read here, before a layer or a route of the dashboard could ask for it without a bound.
"""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tightship_platform.api.errors import as_response
from tightship_platform.api.gate import PUBLIC
from tightship_platform.client import API
from tightship_platform.errors import TightshipError, TooLarge

PAGE_MAX_BYTES = 1_000_000
"""Largest body of a request outside the API; callbacks of the pages send a few hundred bytes."""
FORM_MAX_BYTES = 4096
"""Largest body of one that needs no token; a token has fewer than 100 bytes."""


BODY_S = 60.0
"""How long a body that is read into memory may take."""


class Stalled(TightshipError):
    """The sender of a body has fallen silent, or is too slow."""

    http_status = 408


class BodyLimit:
    """ASGI layer that reads the body of a request outside the API, or refuses it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(API + "/"):
            await self.app(scope, receive, send)
            return
        most = FORM_MAX_BYTES if scope["path"] in PUBLIC else PAGE_MAX_BYTES
        try:
            body = await read_body(Request(scope, receive), most=most, what="The body")
        except ClientDisconnect:
            return
        except (TooLarge, Stalled) as error:
            await as_response(error)(scope, receive, send)
            return
        await self.app(scope, first(body, receive), send)


async def read_body(request: Request, *, most: int, what: str) -> bytes:
    """The whole body of a request.

    :raises TooLarge: it has more than `most` bytes; no more than these were kept.
    :raises Stalled: it took longer than `BODY_S`.
    :raises ClientDisconnect: the sender left.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > most:
        raise TooLarge(f"{what} has {int(announced)} bytes; send at most {most}")
    chunks, size = [], 0
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                size += len(chunk)
                if size > most:
                    raise TooLarge(f"{what} has at least {size} bytes; send at most {most}")
                chunks.append(chunk)
    except TimeoutError as error:
        raise Stalled(f"{what} was not there within {BODY_S:g} s; send it again") from error
    return b"".join(chunks)


def first(body: bytes, receive: Receive) -> Receive:
    """`receive` that gives out a body which was read from it, and then what follows."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again
