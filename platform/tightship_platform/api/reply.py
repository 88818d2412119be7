"""What routes share: the database of the request, and the form of an answer."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.responses import JSONResponse

from tightship_platform.database.engine import Database
from tightship_platform.settings import Settings


def _database(request: Request) -> Database:
    database: Database = request.app.state.database
    return database


def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


Db = Annotated[Database, Depends(_database)]
"""The server's database. Routes open a session in the open, so that the commit precedes the answer."""
Config = Annotated[Settings, Depends(_settings)]
"""The server's settings."""


def reply(value: Any) -> JSONResponse:
    """The value as JSON, as it is: what the functions behind the routes return is the public form already."""
    return JSONResponse(value)
