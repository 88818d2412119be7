"""The server about itself: its health, and the description of its routes."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.responses import JSONResponse

from tightship_platform import __version__
from tightship_platform.api.reply import Config, Db, reply
from tightship_platform.api.scopes import needs, route_scopes, scoped_router
from tightship_platform.captures import store_owner
from tightship_platform.captures.artifact_store import open_artifacts
from tightship_platform.database import schema
from tightship_platform.errors import TightshipError
from tightship_platform.tasks.app import broker_answers
from tightship_platform.vocabulary import Scope

router = scoped_router("about")


@router.get("/health", dependencies=[needs(None)], response_model=None)
def health(database: Db, settings: Config) -> JSONResponse:
    """Whether the server can work: status (`ok`, or `degraded` with 503), version, database, broker, schema.

    A broker that is down degrades nothing at once (work waits), so the status stays `ok`; without the database it is
    `degraded`.
    """
    version, works = None, False
    try:
        version = database.schema_version()
        works = version == schema.head()
        state = "ok" if works else "another schema"
    except TightshipError:
        state = "unreachable"
    body = {
        "status": "ok" if works else "degraded",
        "version": __version__,
        "database": state,
        "broker": "ok" if broker_answers(settings) else "unreachable",
        "schema": version,
    }
    return JSONResponse(body, status_code=200 if works else 503)


@router.get("/store", dependencies=[needs(Scope.READ)], response_model=None)
def store(database: Db, settings: Config) -> JSONResponse:
    """Whose the artifact store is: `fault` says why nothing may be removed from it; null: it is this installation's."""
    try:
        with database.session() as session:
            fault = store_owner.find_fault(session, open_artifacts(settings))
    except (TightshipError, OSError) as error:
        fault = f"The artifact store cannot be read ({' '.join(str(error).split())})"
    return reply({"fault": fault})


@router.get("/openapi.json", dependencies=[needs(Scope.READ)], include_in_schema=False, response_model=None)
def openapi(request: Request) -> JSONResponse:
    """The OpenAPI document."""
    app = request.app
    if app.openapi_schema is None:
        app.openapi_schema = _document(app)
    return reply(app.openapi_schema)


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    document.setdefault("components", {})["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "A token made by `tightship token create`."}
    }
    for path, methods, scope in route_scopes(app):
        operations = document["paths"].get(path.replace(":path}", "}"), {})
        for method in methods:
            if method.lower() in operations and isinstance(scope, Scope):
                operation = operations[method.lower()]
                operation["security"] = [{"token": []}]
                operation["description"] += f"\n\nNeeds the scope `{scope}`."
    return document
