"""Dash on the platform's own ASGI application.

[Note: what Dash's FastAPI backend does otherwise]
Dash 4.4 runs a synchronous callback on the event loop, where one slow query would hold up every agent's upload; it
registers its catch-all route when the server starts, on whichever Dash object was created last in the process; and it
opens a WebSocket route that nothing here needs. This backend runs callbacks on the thread pool, leaves the routes to
`app.mount`, and sends the large scripts compressed.
"""

from __future__ import annotations

import gzip
import logging
import mimetypes
from contextvars import copy_context
from typing import Any

from dash.backends._fastapi import FastAPIDashServer
from dash.exceptions import DashException, DependencyException, InvalidResourceError, PreventUpdate
from dash.fingerprint import check_fingerprint
from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse

from tightship_platform.errors import TightshipError

log = logging.getLogger(__name__)

ZIP_FROM_BYTES = 20_000
"""Answers from this size on, such as charts, travel compressed."""


class PlatformBackend(FastAPIDashServer):
    """See the note at the head of this file."""

    websocket_capability = False

    def __init__(self, server: FastAPI) -> None:
        super().__init__(server)
        self._zipped: dict[tuple[str, str], bytes] = {}

    def _setup_catchall(self) -> None:
        """Dash calls this at start-up for the newest Dash object; our routes are there already."""

    def setup_index(self, dash_app: Any) -> None:
        """`app.mount` serves the document of every page, the first one included."""

    def serve_callback(self, dash_app: Any) -> Any:
        """The route behind every callback."""

        async def dispatch(request: Request) -> Response:
            answer = await run_in_threadpool(self._answer, dash_app)
            if len(answer.body) < ZIP_FROM_BYTES or "gzip" not in request.headers.get("accept-encoding", ""):
                return answer
            zipped = await run_in_threadpool(gzip.compress, bytes(answer.body), 1)
            return Response(zipped, answer.status_code, {"content-encoding": "gzip"}, answer.media_type)

        return dispatch

    def _answer(self, dash_app: Any) -> Response:
        adapter: Any = self.request_adapter()
        body = adapter.get_json()
        try:
            if str(body["output"]) not in dash_app.callback_map:
                raise KeyError(body["output"])
            context = dash_app._initialize_context(body)
            func = dash_app._prepare_callback(context, body)
            args = dash_app._inputs_to_vals(context.inputs_list + context.states_list)
            call = dash_app._execute_callback(func, args, context.outputs_list, context)
        except (KeyError, TypeError, AttributeError, IndexError, ValueError, DashException):
            return JSONResponse({"error": "The body is not a callback of this dashboard; reload the page"}, 400)
        try:
            data = copy_context().run(call)
        except PreventUpdate:
            return Response(status_code=204)
        except TightshipError as error:
            return JSONResponse({"error": str(error)}, status_code=error.http_status)
        except Exception:
            # Dash's own handler would answer without a word in the log.
            log.exception("Callback %s failed", body.get("output"))
            return JSONResponse({"error": "Internal error; the server's log has the details"}, status_code=500)
        answer: Response = context.dash_response.set_response(data=data)
        return answer

    def setup_component_suites(self, dash_app: Any) -> Any:
        """Scripts of Dash and its components: read on the thread pool, compressed once."""

        def serve(request: Request, package_name: str, fingerprinted_path: str) -> Response:
            # The key leaves the fingerprint out: made-up ones must not fill the memory.
            path, fingerprinted = _split(fingerprinted_path)
            zipped = fingerprinted and "gzip" in request.headers.get("accept-encoding", "")
            if zipped and (package_name, path) in self._zipped:
                return _script(self._zipped[package_name, path], path)
            try:
                plain: Response = self.serve_component_suites(dash_app, package_name, fingerprinted_path, request)
            except (DependencyException, InvalidResourceError, OSError):
                return Response("No such script", status_code=404, media_type="text/plain")
            if not zipped or plain.status_code != 200:
                return plain
            self._zipped[package_name, path] = gzip.compress(bytes(plain.body), compresslevel=6)
            return _script(self._zipped[package_name, path], path)

        dash_app._add_url("_dash-component-suites/{package_name}/{fingerprinted_path:path}", serve)


def _split(address: str) -> tuple[str, bool]:
    check: Any = check_fingerprint
    path, fingerprinted = check(address)
    return str(path), bool(fingerprinted)


def _script(body: bytes, path: str) -> Response:
    headers = {
        "cache-control": "public, max-age=31536000, immutable",
        "vary": "accept-encoding",
        "content-encoding": "gzip",
    }
    return Response(content=body, media_type=mimetypes.guess_type(path)[0], headers=headers)
