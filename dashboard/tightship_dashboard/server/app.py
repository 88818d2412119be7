"""Puts the dashboard on the platform's server, beside its API."""

from __future__ import annotations

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

from tightship_dashboard.pages import (
    did_it_work,
    is_the_collection_healthy,
    one_run,
    one_trace,
    runs,
    where_do_device_hours_go,
    who_did_what,
    will_it_fit,
)
from tightship_dashboard.server import first_paint, shell
from tightship_dashboard.server.backend import PlatformBackend
from tightship_platform.database.engine import Database
from tightship_platform.settings import Settings


def mount(app: FastAPI, settings: Settings) -> None:
    """Add the dashboard to the server: it takes every address that no other route has, except under /api.

    Reads through `app.state.database`. Each call makes its own Dash object, so that one process can hold several
    servers; nothing is registered globally.
    """
    database: Database = app.state.database
    dash = first_paint.TightshipDash(
        __name__,
        server=False,
        backend=PlatformBackend,
        use_pages=False,
        pages_folder="",
        assets_folder="assets",
        assets_ignore=r"before_paint\.js",
        serve_locally=True,
        suppress_callback_exceptions=True,
        title="tightship",
        update_title="",
        add_log_handler=False,
    )
    dash.layout = shell.layout
    for part in (shell, where_do_device_hours_go, runs, one_run, did_it_work, is_the_collection_healthy, who_did_what):
        part.register(dash, database)
    for part in (will_it_fit, one_trace):
        part.register(dash, database, settings)
    dash.init_app(app)

    @app.get("/favicon.ico", include_in_schema=False)
    def _favicon() -> Response:
        return RedirectResponse("/assets/favicon.svg", status_code=301)

    @app.get("/{path:path}", include_in_schema=False)
    def _page(request: Request, path: str) -> Response:
        if path == "api" or path.startswith("api/"):
            raise HTTPException(status_code=404, detail="No such route")
        return first_paint.serve(dash, database, request)
