"""The OpenAPI document: FastAPI's, with what it cannot know."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from tightship_platform.api.scopes import route_scopes
from tightship_platform.results.docs import field_docs
from tightship_platform.vocabulary import Scope
from tightship_platform.wire import Refusal


def document(app: FastAPI) -> dict[str, Any]:
    """The document, with the scope that each route needs and the docstring of each record's fields; made once."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    made = get_openapi(title=app.title, version=app.version, routes=app.routes)
    made.setdefault("components", {})["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "A token made by `tightship token create`."}
    }
    for path, methods, scope in route_scopes(app):
        operations = made["paths"].get(path.replace(":path}", "}"), {})
        for method in methods:
            if method.lower() in operations and isinstance(scope, Scope):
                operation = operations[method.lower()]
                operation["security"] = [{"token": []}]
                operation["description"] += f"\n\nNeeds the scope `{scope}`."
    for operation in (one for methods in made["paths"].values() for one in methods.values()):
        # FastAPI documents a refusal with the media type of the answer, also where that is a file.
        refusal = operation["responses"]["4XX"]
        (content,) = refusal["content"].values()
        refusal["content"] = {"application/json": content}
    schemas = made["components"].get("schemas", {})
    for record in _records(app):
        properties = schemas.get(record.__name__, {}).get("properties", {})
        for name, text in field_docs(record).items():
            properties.get(name, {}).setdefault("description", text)
    app.openapi_schema = made
    return made


def _records(app: FastAPI) -> set[type]:
    """Dataclasses that routes take or answer, and those in them."""
    found: set[type] = set()
    for included in app.routes:
        # FastAPI keeps included routers whole.
        contexts = included.effective_route_contexts() if hasattr(included, "effective_route_contexts") else []
        for route in (context.original_route for context in contexts):
            if isinstance(route, APIRoute):
                bodies = [param.field_info.annotation for param in route.dependant.body_params]
                for kind in _parts([route.response_model, *bodies, Refusal]):
                    _collect(kind, found)
    return found


def _collect(kind: type, found: set[type]) -> None:
    if kind not in found:
        found.add(kind)
        for inner in _parts(get_type_hints(kind).values()):
            _collect(inner, found)


def _parts(kinds: Any) -> Iterator[type]:
    """Dataclasses named in annotations such as `list[Run]` and `Host | None`."""
    for kind in kinds:
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            yield kind
        yield from _parts(get_args(kind))
