"""Every failure leaves the API as `{"error": "<one line>"}` with a fitting status."""

from __future__ import annotations

import logging
import math
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from tightship_platform.captures.artifact_store import StoreTrouble
from tightship_platform.database.trouble import is_disk_full
from tightship_platform.errors import AskedToWait, TightshipError
from tightship_platform.text import printable

log = logging.getLogger(__name__)

_BUSY = "Too many requests wait for the database; try again"
_SHOWN = 100
"""Longest part of somebody's value that an error line repeats."""


def as_response(error: TightshipError) -> JSONResponse:
    """An expected failure as the API tells it."""
    # After 408 the rest of the body may still come: no further request can be read from that connection.
    headers = {401: {"www-authenticate": "Bearer"}, 408: {"connection": "close"}}
    if isinstance(error, AskedToWait):
        return line(str(error), error.http_status, {"retry-after": str(math.ceil(error.wait_s))})
    return line(str(error), error.http_status, headers.get(error.http_status))


def outside_of_routes(error: TightshipError | PoolTimeout | DBAPIError) -> JSONResponse:
    """A failure in a layer that stands outside of the API's own error handlers."""
    if isinstance(error, TightshipError):
        return as_response(error)
    return database_trouble(error) if isinstance(error, DBAPIError) else line(_BUSY, 503)


def line(message: str, status: int, headers: dict[str, str] | None = None) -> JSONResponse:
    """One line of text as an error answer; what is not printable is escaped."""
    return JSONResponse({"error": printable(message)}, status_code=status, headers=headers)


def database_trouble(error: DBAPIError) -> JSONResponse:
    """What the driver complains about, as one line; what is no fault of the request goes to the log."""
    if isinstance(error, DataError) or _is_overflow(error):
        return line(f"The database cannot work with a value of this request ({_cause(error)})", 422)
    if isinstance(error, IntegrityError):
        return line(f"The request contradicts what is being stored ({_cause(error)}); try again", 503)
    if is_disk_full(error):
        log.error("The disk of the database is full: %s", _cause(error))
        return line("The disk of the database is full and nothing was stored; make room there, then try again", 503)
    if isinstance(error, OperationalError) or error.connection_invalidated:
        log.warning("Database trouble: %s", _cause(error))
        return line("The database does not answer now; nothing was stored, try again", 503)
    log.error("Database error", exc_info=error)
    return line("Internal error; the server's log has the details", 500)


def fault_line(fault: Any) -> str:
    """One of the faults that FastAPI finds in a request, in a line."""
    where = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "json_invalid":
        return f"{where}: not JSON: {fault.get('ctx', {}).get('error', fault['msg'])}"
    if fault["type"] == "missing":
        return f"{where} is missing"
    shown = repr(fault.get("input"))
    if len(shown) > _SHOWN:
        shown = shown[: _SHOWN - 3] + "..."
    return f"{where} is {shown}: {fault['msg']}"


def add_error_handlers(app: FastAPI) -> None:
    """Answer every failure of a route with one line."""

    @app.exception_handler(TightshipError)
    async def _expected(_request: Request, error: TightshipError) -> JSONResponse:
        return as_response(error)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        faults = error.errors()
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        return line(fault_line(faults[0]) + more, 422)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        message = str(error.detail)
        if error.status_code in (404, 405):
            message = f"{message}: {request.method} {request.url.path[:_SHOWN]}; see /api/v1/openapi.json"
        return line(message, error.status_code, dict(error.headers or {}))

    @app.exception_handler(DBAPIError)
    async def _database(_request: Request, error: DBAPIError) -> JSONResponse:
        return database_trouble(error)

    @app.exception_handler(StoreTrouble)
    async def _store(_request: Request, error: StoreTrouble) -> JSONResponse:
        log.warning("%s", error)
        return line(f"{error}; nothing was lost, try again", 503)

    @app.exception_handler(PoolTimeout)
    async def _busy(_request: Request, _error: PoolTimeout) -> JSONResponse:
        return line(_BUSY, 503)

    @app.exception_handler(ClientDisconnect)
    async def _gone(_request: Request, _error: ClientDisconnect) -> JSONResponse:
        return line("The connection ended before the request did", 400)  # for the metrics: nobody reads it

    @app.exception_handler(Exception)
    async def _defect(_request: Request, _error: Exception) -> JSONResponse:
        # The traceback reaches the log through the server, which sees the exception after this answer.
        return line("Internal error; the server's log has the details", 500)


def _is_overflow(error: DBAPIError) -> bool:
    """PostgreSQL calls it a DataError, SQLite an operational one; trying again never helps."""
    return getattr(error.orig, "sqlite_errorname", "") == "SQLITE_ERROR" and "integer overflow" in str(error.orig)


def _cause(error: DBAPIError) -> str:
    return " ".join(str(error.orig).split())[:_SHOWN]
