"""Login by single sign-on: to the provider, and back from it. Pages of their own, which need no scope."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from tightship_platform.api.browser_sessions import begin_session
from tightship_platform.api.headers import content_policy
from tightship_platform.api.refusals import peer_of
from tightship_platform.api.routes.login import keep_cookie, local_path, login_page
from tightship_platform.api.sso import CALLBACK, START
from tightship_platform.api.sso.refusal import LoginRefused
from tightship_platform.database.engine import Database
from tightship_platform.errors import Conflict, TightshipError

if TYPE_CHECKING:
    from tightship_platform.api.sso.login import Login, SingleSignOn

router = APIRouter()

NOT_SET_UP = "This server has no single sign-on; log in with a token."
_ON = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>tightship: logged in</title>
<link rel="icon" href="data:,">
<meta http-equiv="refresh" content="0; url={target}"></head>
<body><p>You are logged in. <a href="{target}">Go on</a></p></body></html>"""
"""A page, not a redirect: the browser would not send a strict cookie along redirects that began at the provider."""


@router.get(START, include_in_schema=False)
async def begin(request: Request, next: str = "/") -> Response:
    """Send the browser to the provider."""
    signing_on: SingleSignOn | None = request.app.state.single_sign_on
    target = local_path(next)
    if signing_on is None:
        return login_page(request, target, NOT_SET_UP, 404)
    try:
        url, attempt = await signing_on.begin(target)
    except TightshipError as error:
        return await _refuse(request, target, error)
    answer = RedirectResponse(url, status_code=303, headers={"cache-control": "no-store"})
    answer.set_cookie(
        signing_on.cookie,
        attempt.cookie,
        max_age=signing_on.begun_s,
        httponly=True,
        samesite="lax",  # it has to come back with the browser, from the provider's pages
        secure=signing_on.is_secure,
    )
    return answer


@router.get(CALLBACK, include_in_schema=False)
async def finish(request: Request, state: str = "", code: str = "", error: str = "") -> Response:
    """The browser is back: begin its session."""
    signing_on: SingleSignOn | None = request.app.state.single_sign_on
    if signing_on is None:
        return login_page(request, "/", NOT_SET_UP, 404)
    attempt = signing_on.attempt(request.cookies.get(signing_on.cookie, ""))
    target = local_path(attempt.target) if attempt else "/"
    try:
        login = await signing_on.finish(attempt, state=state, code=code, error=error)
        database, peer = request.app.state.database, peer_of(request)
        secret = await run_in_threadpool(_begin, database, login, signing_on.session_s, peer)
    except TightshipError as trouble:
        answer = await _refuse(request, target, trouble)
    except (DBAPIError, PoolTimeout):
        answer = login_page(request, target, "The database does not answer; try again.", 503)
    else:
        to = html.escape(target, quote=True)
        headers = {
            "cache-control": "no-store",
            "content-security-policy": content_policy(img_src="data:"),
            "referrer-policy": "no-referrer",
        }
        answer = HTMLResponse(_ON.format(target=to), headers=headers)
        keep_cookie(request, answer, secret, signing_on.session_s)
    answer.delete_cookie(signing_on.cookie, httponly=True, samesite="lax", secure=signing_on.is_secure)
    return answer


def _begin(database: Database, login: Login, lifetime_s: int, peer: str) -> str:
    with database.session() as session:
        return begin_session(
            session,
            name=login.person.name,
            subject=login.person.subject,
            scopes=login.grant.scopes,
            team=login.grant.team,
            state_sha256=login.state_sha256,
            lifetime_s=lifetime_s,
            peer=peer,
        )


async def _refuse(request: Request, target: str, error: TightshipError) -> HTMLResponse:
    reason, who = "away", ""
    if isinstance(error, LoginRefused):
        reason, who = error.reason, error.who
    elif isinstance(error, Conflict):
        reason = "state"
    line = f"{error}."
    await run_in_threadpool(request.app.state.refusals.note_login, reason, who, line, request)
    return login_page(request, target, line, error.http_status)
