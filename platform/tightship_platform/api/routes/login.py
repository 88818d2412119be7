"""The login page: a browser gives its token, or a code for it, and gets a cookie that scripts cannot read."""

from __future__ import annotations

import html
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from tightship_platform.api.auth import LOOPBACK, Caller, current_caller
from tightship_platform.api.browser_sessions import end_session
from tightship_platform.api.gate import COOKIE, local_cookie, require_direct
from tightship_platform.api.headers import content_policy, inline_source
from tightship_platform.api.refusals import peer_of
from tightship_platform.database.audit import audit
from tightship_platform.database.engine import Database
from tightship_platform.processes.login_codes import CODE_S, take_code
from tightship_platform.vocabulary import Scope

router = APIRouter()

_COOKIE_S = 30 * 86400
_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 26rem; margin: 15vh auto; padding: 0 1rem; }
input, button { font: inherit; width: 100%; box-sizing: border-box; padding: .5rem; margin-top: .5rem; }
a.sso { display: block; padding: .5rem; border: 1px solid; color: inherit; text-align: center; text-decoration: none; }
p.fault { color: #c0392b; }
"""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>tightship: log in</title>
<link rel="icon" href="data:,">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{style}</style></head>
<body><h1>tightship</h1>
{fault}{sso}{local}<p>{asks} a token. Whoever runs it makes one with
<code>tightship token create NAME --scope read</code>.</p>
<form method="post" action="/login"><input type="hidden" name="next" value="{target}">
<label>Token <input type="password" name="token"{focus} autocomplete="current-password" required></label>
<button type="submit">Log in</button></form></body></html>"""

_OWN = "<p>Your own server? Get a link that logs you in: <code>tightship token link</code></p>\n"
_BUTTON = '<p><a class="sso" href="/login/sso?next={next}">Log in with {provider}</a></p>\n'


@router.get("/login", include_in_schema=False)
async def show(request: Request, next: str = "/", code: str = "") -> Response:
    """The form; with the code of a link (`api.auth`, [Note: one local user]), straight on instead."""
    if not code:
        return login_page(request, next, "")
    state, answer = request.app.state, RedirectResponse(local_path(next), status_code=303)
    if state.access.local_token:
        require_direct(request)
        if await run_in_threadpool(take_code, state.settings.home, code):
            await run_in_threadpool(_write_down, state.database, LOOPBACK.name, request)
            # The browser came straight here, whatever the scheme of TIGHTSHIP_PUBLIC_URL.
            _set_cookie(answer, local_cookie(request), state.access.local_token, _COOKIE_S, request.url.scheme)
            return answer
    caller = current_caller()
    if caller is not None and caller.may(Scope.READ):  # the same link once more
        return answer
    return login_page(request, next, f"This link was used, or is older than {CODE_S // 60} minutes.", 401)


@router.post("/login", include_in_schema=False)
async def log_in(request: Request) -> Response:
    """Check the token and send the browser on."""
    form = parse_qs((await request.body()).decode("utf-8", "replace"))
    token, target = form.get("token", [""])[0].strip(), form.get("next", ["/"])[0]
    access = request.app.state.access
    answer = RedirectResponse(local_path(target), status_code=303)
    caller = await run_in_threadpool(access.recognise, token)
    reason = _refused(caller)
    if reason:
        who = caller.name if caller else ""
        await run_in_threadpool(request.app.state.refusals.note, reason, who, request)
    if caller is None:
        return login_page(request, target, "This token is unknown or revoked.", 401)
    if caller.expired_ns is not None:
        return login_page(request, target, "This token has expired.", 401)
    if not caller.may(Scope.READ):
        return login_page(request, target, "This token lacks the scope 'read', which the pages need.", 403)
    if caller is LOOPBACK:
        require_direct(request)
    await run_in_threadpool(_write_down, request.app.state.database, caller.name, request)
    keep_cookie(request, answer, token, _COOKIE_S)
    return answer


def keep_cookie(request: Request, answer: Response, secret: str, age_s: int) -> None:
    """Have the browser send this token, or the secret of this session, with what comes from here."""
    _set_cookie(answer, COOKIE, secret, age_s, request.url.scheme, request.app.state.settings.public_url)
    # It would go first, were it an old one.
    answer.delete_cookie(local_cookie(request), httponly=True, samesite="strict")


def _set_cookie(answer: Response, name: str, secret: str, age_s: int, *urls: str) -> None:
    secure = any(url.partition(":")[0] == "https" for url in urls)
    answer.set_cookie(name, secret, max_age=age_s, httponly=True, samesite="strict", secure=secure)


def _refused(caller: Caller | None) -> str:
    """Why these pages are not shown to the caller; empty: they are."""
    if caller is None:
        return "unknown"
    if caller.expired_ns is not None:
        return "expired"
    return "" if caller.may(Scope.READ) else "scope"


def _write_down(database: Database, name: str, request: Request) -> None:
    with database.session() as session:
        audit(session, name, "session.begin", name, peer=peer_of(request))


@router.get("/logout", include_in_schema=False)
@router.post("/logout", include_in_schema=False)
async def log_out(request: Request) -> Response:
    """Forget the cookies, and end the session that one is of."""
    if secret := request.cookies.get(COOKIE, ""):
        await run_in_threadpool(_end, request.app.state.database, secret, peer_of(request))
    answer = RedirectResponse("/login", status_code=303)
    for cookie in (COOKIE, local_cookie(request)):
        answer.delete_cookie(cookie, httponly=True, samesite="strict")
    return answer


def _end(database: Database, secret: str, peer: str) -> None:
    with database.session() as session:
        end_session(session, secret, peer=peer)


def local_path(target: str) -> str:
    """Where to go on: a path of this server, never another site (`//host`, `/\\host`, `https://…`)."""
    is_path = target.startswith("/") and not target.startswith("//")
    return target if is_path and target.isprintable() and "\\" not in target else "/"


def login_page(request: Request, target: str, fault: str, status: int = 200) -> HTMLResponse:
    """The form, with one line about what went wrong before."""
    signing_on = request.app.state.single_sign_on
    shown = f'<p class="fault">{html.escape(fault)}</p>\n' if fault else ""
    sso = ""
    if signing_on:
        sso = _BUTTON.format(next=quote(local_path(target), safe=""), provider=html.escape(signing_on.shown))
    body = _PAGE.format(
        style=_STYLE,
        fault=shown,
        sso=sso,
        local=_OWN if request.app.state.access.local_token else "",
        asks="Or give" if signing_on else "This server asks for",
        focus="" if signing_on else " autofocus",
        target=html.escape(local_path(target), quote=True),
    )
    policy = content_policy(style_src=inline_source(_STYLE), img_src="data:")
    headers = {"cache-control": "no-store", "content-security-policy": policy}
    return HTMLResponse(body, status_code=status, headers=headers)
