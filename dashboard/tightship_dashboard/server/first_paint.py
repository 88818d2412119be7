"""The HTML that the server sends first: it already holds the answer, in words, before any script has run."""

from __future__ import annotations

import logging
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from dash import Dash
from dash.backends._fastapi import reset_current_request, set_current_request
from fastapi import Request, Response

from tightship_dashboard.pages.view import current_view
from tightship_dashboard.sentences import answers
from tightship_dashboard.sentences.links import Answer, Link
from tightship_dashboard.server.routing import page_at
from tightship_platform.api.headers import content_policy
from tightship_platform.database.engine import Database
from tightship_platform.errors import TightshipError

log = logging.getLogger(__name__)

_DOCUMENT = """<!DOCTYPE html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <title>{title} · tightship</title>
    <meta name="description" content="{description}">
    <link rel="icon" type="image/svg+xml" href="/assets/favicon.svg">
    <script src="/assets/before_paint.js?v={version}"></script>
    {metas}
    {css}
  </head>
  <body>
    <div id="first-paint">
      <header><a class="wordmark" href="/">tightship</a></header>
      <main><p class="answer">{answer}</p>
      <noscript><p class="notice">The tables and charts need JavaScript; the same numbers are at
      <a href="/api/v1/openapi.json">/api/v1/openapi.json</a> and behind
      <code>tightship runs</code>.</p></noscript></main>
    </div>
    {app_entry}
    <footer>{config}{scripts}{renderer}</footer>
  </body>
</html>
"""


_PARTS = ("metas", "css", "app_entry", "config", "scripts", "renderer")


class TightshipDash(Dash):
    """Dash with our document around it."""

    def interpolate_index(self, **parts: Any) -> str:  # type: ignore[override]  # Dash passes all by name
        """Dash's parts of a document; `serve` puts them into ours, with what depends on the address."""
        return "\0".join(parts[name] for name in _PARTS)


def serve(dash: Any, database: Database, request: Request) -> Response:
    """The document of the page at this address; 404 when it names nothing."""
    path, status = unquote(request.url.path), 200
    enter: Any = set_current_request
    leave: Any = reset_current_request
    token = enter(request)
    try:
        page = page_at(path)
        title, answer = (page.title if page else "Nothing here"), _no_page(path)
        if page is None:
            status = 404
        else:
            try:
                answer = page.answer(current_view(database, request.url.query))
            except TightshipError as error:
                answer, status = [f"{error}."], error.http_status
        dash._setup_server()
        parts = dict(zip(_PARTS, dash.index().split("\0"), strict=True))
    finally:
        leave(token)
    document = _DOCUMENT.format(
        title=escape(title),
        description=escape(answers.plain(answer).replace("`", "")),
        answer="".join(_part(part) for part in answer),
        version=_before_paint_version(),
        **parts,
    )
    headers = {"cache-control": "no-store", "content-security-policy": _policy(dash)}
    return Response(document, status_code=status, media_type="text/html", headers=headers)


def _policy(dash: Any) -> str:
    """What the pages may load: their own server's files, and the few scripts that Dash writes into the document.

    Not as strict for styles: Mantine and AG Grid put style elements into the page whose text is not known before.
    """
    return content_policy(
        script_src=" ".join(["'self'", *dash.csp_hashes()]),
        style_src="'self' 'unsafe-inline'",
        img_src="'self' data: blob:",
        font_src="'self' data:",
        connect_src="'self'",
    )


def _no_page(path: str) -> Answer:
    return [f"There is no page at {path[:80]!r}."]


def _part(part: str | Link) -> str:
    if isinstance(part, Link):
        return f'<a href="{escape(part.href)}">{_prose(part.text)}</a>'
    return _prose(part)


def _prose(text: str) -> str:
    pieces = escape(text).split("`")
    if len(pieces) < 3 or len(pieces) % 2 == 0:
        return escape(text)
    return "".join(f"<code>{piece}</code>" if i % 2 else piece for i, piece in enumerate(pieces))


def _before_paint_version() -> str:
    return str(int((Path(__file__).parent / "assets" / "before_paint.js").stat().st_mtime))
