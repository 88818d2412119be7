"""The login page: a browser gives its token once and gets it back as a cookie that scripts cannot read."""

from __future__ import annotations

import html
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from tightship_platform.api.auth import Caller
from tightship_platform.api.gate import COOKIE
from tightship_platform.api.headers import content_policy, inline_source
from tightship_platform.database.audit import audit
from tightship_platform.database.engine import Database
from tightship_platform.vocabulary import Scope

router = APIRouter()

_COOKIE_S = 30 * 86400
_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 26rem; margin: 15vh auto; padding: 0 1rem; }
input, button { font: inherit; width: 100%; box-sizing: border-box; padding: .5rem; margin-top: .5rem; }
p.fault { color: #c0392b; }
"""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>tightship: log in</title>
<link rel="icon" href="data:,">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{style}</style></head>
<body><h1>tightship</h1>
<p>This server asks for a token. Whoever runs it makes one with
<code>tightship token create NAME --scope read</code>.</p>
{fault}<form method="post" action="/login"><input type="hidden" name="next" value="{target}">
<label>Token <input type="password" name="token" autofocus autocomplete="current-password" required></label>
<button type="submit">Log in</button></form></body></html>"""


@router.get("/login", include_in_schema=False)
async def show(next: str = "/") -> HTMLResponse:
    """The form."""
    return _page(next, "")


@router.post("/login", include_in_schema=False)
async def log_in(request: Request) -> Response:
    """Check the token and send the browser on."""
    form = parse_qs((await request.body()).decode("utf-8", "replace"))
    token, target = form.get("token", [""])[0].strip(), form.get("next", ["/"])[0]
    access = request.app.state.access
    answer = RedirectResponse(_local(target), status_code=303)
    if access.is_open:
        return answer
    caller = await run_in_threadpool(access.recognise, token)
    reason = _refused(caller)
    if reason:
        who = caller.name if caller else ""
        await run_in_threadpool(request.app.state.refusals.note, reason, who, request)
    if caller is None:
        return _page(target, "This token is unknown or revoked.", 401)
    if caller.expired_ns is not None:
        return _page(target, "This token has expired.", 401)
    if not caller.may(Scope.READ):
        return _page(target, "This token lacks the scope 'read', which the pages need.", 403)
    await run_in_threadpool(_write_down, request.app.state.database, caller.name, request)
    answer.set_cookie(
        COOKIE,
        token,
        max_age=_COOKIE_S,
        httponly=True,
        samesite="strict",
        secure="https" in (request.url.scheme, request.app.state.settings.public_url.partition(":")[0]),
    )
    return answer


def _refused(caller: Caller | None) -> str:
    """Why these pages are not shown to the caller; empty: they are."""
    if caller is None:
        return "unknown"
    if caller.expired_ns is not None:
        return "expired"
    return "" if caller.may(Scope.READ) else "scope"


def _write_down(database: Database, name: str, request: Request) -> None:
    with database.session() as session:
        audit(session, name, "session.begin", name, peer=request.client.host if request.client else "unknown")


@router.get("/logout", include_in_schema=False)
@router.post("/logout", include_in_schema=False)
async def log_out() -> Response:
    """Forget the cookie."""
    answer = RedirectResponse("/login", status_code=303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


def _local(target: str) -> str:
    """Where to go on: a path of this server, never another site (`//host`, `/\\host`, `https://…`)."""
    is_path = target.startswith("/") and not target.startswith("//")
    return target if is_path and target.isprintable() and "\\" not in target else "/"


def _page(target: str, fault: str, status: int = 200) -> HTMLResponse:
    shown = f'<p class="fault">{html.escape(fault)}</p>' if fault else ""
    body = _PAGE.format(style=_STYLE, fault=shown, target=html.escape(_local(target), quote=True))
    policy = content_policy(style_src=inline_source(_STYLE), img_src="data:")
    headers = {"cache-control": "no-store", "content-security-policy": policy}
    return HTMLResponse(body, status_code=status, headers=headers)
