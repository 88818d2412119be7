"""How a route says which scope it needs, and how that and the shape of its body are enforced."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, FastAPI, Request, params
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.routing import Mount

from tightship_platform.api.auth import current_caller, require
from tightship_platform.api.bodies import read_body
from tightship_platform.api.errors import fault_line
from tightship_platform.api.gate import PUBLIC
from tightship_platform.client import API
from tightship_platform.database.teams import see_team
from tightship_platform.errors import Forbidden, Invalid
from tightship_platform.ingest import RefusedRows
from tightship_platform.vocabulary import Scope
from tightship_platform.wire import Refusal

JSON_MAX_BYTES = 16 * 1024**2
"""Largest JSON body; a batch of a minute of a host with eight devices has well under one MiB."""
_OF_ALL_TEAMS = (Scope.INGEST, Scope.ENROL)
"""What is sent may be about a run of another team, which is refused for that."""
_DEPTH_MAX = 32
_INT_LIMIT = 2**63
LATER = 256 * 1024
"""Bodies from this size on are read on the thread pool, so that they do not hold up the event loop."""


@dataclass(frozen=True)
class _Declared:
    """Marks a route; the check itself is in ScopedRoute, before the body is read."""

    scope: Scope | None
    row_lists: tuple[str, ...] = ()

    async def __call__(self) -> None:
        """Nothing left to do when FastAPI gets here."""


def needs(scope: Scope | None, *, row_lists: tuple[str, ...] = ()) -> params.Depends:
    """Declare in a route's `dependencies` which scope it needs; None: anybody may call it.

    :param row_lists: lists of the body of which a row that cannot be read is left out and counted, as `Refused`; a
        fault elsewhere refuses the whole body, as in every other route.
    """
    return params.Depends(_Declared(scope, row_lists))


def declared(route: APIRoute) -> _Declared | None:
    """What the route says; None when it says nothing."""
    found = [d.dependency for d in route.dependencies if isinstance(d.dependency, _Declared)]
    return found[0] if len(found) == 1 else None


class ScopedRoute(APIRoute):
    """A route that checks its scope before it reads the body, and takes no JSON that a database could choke on."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        declaration = declared(self)
        if declaration is None:
            raise TypeError(f"Route {self.path} declares no scope; add dependencies=[needs(Scope.…)]")
        scope, row_lists = declaration.scope, declaration.row_lists
        has_body = self.body_field is not None
        inner = super().get_route_handler()

        async def handle(request: Request) -> Response:
            if scope is not None:
                try:
                    require(scope)
                except Forbidden:
                    caller, refusals = current_caller(), request.app.state.refusals
                    await run_in_threadpool(refusals.note, "scope", caller.name if caller else "", request)
                    raise
            if scope in _OF_ALL_TEAMS:
                see_team(None)
            checked = _CheckedRequest(request.scope, request.receive)
            checked.state.refused_rows = RefusedRows()
            if has_body:
                await checked.prepare(row_lists)  # FastAPI would hide what this says behind "error parsing the body"
            try:
                return await inner(checked)
            except RequestValidationError as error:
                if not checked.leave_out(error.errors(), row_lists):
                    raise
                return await inner(checked)

        return handle


def scoped_router(tag: str) -> APIRouter:
    """A router of the API: its routes declare a scope each."""
    return APIRouter(prefix=API, route_class=ScopedRoute, tags=[tag], responses={"4XX": {"model": Refusal}})


class _CheckedRequest(Request):
    """A request whose body is bounded and whose JSON holds nothing that no column can."""

    async def body(self) -> bytes:
        """The whole body.

        :raises TooLarge: it has more than `JSON_MAX_BYTES`.
        :raises Stalled: it was not there in time.
        """
        if not hasattr(self, "_body"):
            self._body = await read_body(self, most=JSON_MAX_BYTES, what="The JSON body")
        return self._body

    async def prepare(self, row_lists: tuple[str, ...]) -> None:
        """Read and decode the body. One that is no JSON is left for FastAPI, which tells where it goes wrong.

        :raises TooLarge: it has more than `JSON_MAX_BYTES`.
        :raises Stalled: it was not there in time.
        :raises Invalid: it nests too deep, or holds NaN, NUL, half a surrogate pair or an integer beyond 64 bits.
        """
        body = await self.body()
        refused = self.state.refused_rows
        with contextlib.suppress(json.JSONDecodeError):
            if len(body) > LATER:
                self._json = await run_in_threadpool(_decode, body, row_lists, refused)
            else:
                self._json = _decode(body, row_lists, refused)

    def leave_out(self, faults: Sequence[Any], row_lists: tuple[str, ...]) -> bool:
        """Take the rows with these faults out of the body; False: a fault lies elsewhere, nothing was changed."""
        found: dict[tuple[str, int], str] = {}
        for fault in faults:
            where = fault["loc"]
            if len(where) < 3 or where[0] != "body" or where[1] not in row_lists or type(where[2]) is not int:
                return False
            found.setdefault((where[1], where[2]), fault_line(fault))
        for reason in found.values():
            self.state.refused_rows.add(reason)
        for name in row_lists:
            rows = self._json.get(name)
            if rows:
                self._json[name] = [row for index, row in enumerate(rows) if (name, index) not in found]
        return True


def _decode(body: bytes, row_lists: tuple[str, ...], refused: RefusedRows) -> Any:
    try:
        value = json.loads(body, parse_constant=float if row_lists else _no_constant)
    except RecursionError as error:
        raise Invalid("Nesting of the JSON body", "too deep", f"at most {_DEPTH_MAX} levels") from error
    except UnicodeDecodeError as error:
        raise Invalid("Encoding of the JSON body", error.reason, "UTF-8") from error
    except json.JSONDecodeError:
        raise
    except ValueError as error:  # an integer of thousands of digits
        raise Invalid("Number in the JSON body", "too long", "integers of at most 64 bits") from error
    try:
        _check_values(value)
    except Invalid:
        if not row_lists or not isinstance(value, dict):
            raise
        _check_values({name: rows for name, rows in value.items() if name not in row_lists})
        for name in row_lists:
            if isinstance(rows := value.get(name), list):
                value[name] = refused.without(rows, _check_values)
            else:
                _check_values(rows)
    return value


def _no_constant(name: str) -> Any:
    raise Invalid("Number in the JSON body", name, "a finite number, or null when it is missing")


def _check_values(top: Any) -> Any:
    """The value itself, when a database can hold all of it."""
    level, depth = [top], 0
    while level:
        depth += 1
        if depth > _DEPTH_MAX:
            raise Invalid("Nesting of the JSON body", "too deep", f"at most {_DEPTH_MAX} levels")
        deeper: list[Any] = []
        for value in level:
            if isinstance(value, str):
                _check_text(value)
            elif isinstance(value, int):
                if not -_INT_LIMIT <= value < _INT_LIMIT:
                    raise Invalid("Integer in the JSON body", value, "at most 64 bits")
            elif isinstance(value, dict):
                for key in value:
                    _check_text(key)
                deeper.extend(value.values())
            elif isinstance(value, list):
                deeper.extend(value)
            elif isinstance(value, float) and value - value != 0.0:  # 1e999 is infinite without being named so
                raise Invalid("Number in the JSON body", value, "a finite number, or null when it is missing")
        level = deeper
    return top


def _check_text(text: str) -> None:
    if text.isascii():
        if "\0" not in text:
            return
    else:
        try:
            if b"\0" not in text.encode():
                return
        except UnicodeEncodeError:
            pass
    raise Invalid("Text in the JSON body", text, "text without NUL and without half surrogate pairs")


def route_scopes(app: FastAPI) -> Iterator[tuple[str, frozenset[str], Scope | str | None]]:
    """Every route of the server: path, methods, and the scope it needs, `public`, or None where nothing says so."""
    yield from _walk(app.routes, "")


def _walk(routes: Any, prefix: str) -> Iterator[tuple[str, frozenset[str], Scope | str | None]]:
    for route in routes:
        if hasattr(route, "effective_route_contexts"):  # FastAPI keeps included routers whole
            for context in route.effective_route_contexts():
                yield _row(prefix, context.path, context.methods, context.original_route)
        elif isinstance(route, Mount) and route.routes:
            yield from _walk(route.routes, prefix + route.path)
        else:
            yield _row(prefix, getattr(route, "path", "?"), getattr(route, "methods", None), route)


def _row(prefix: str, path: str, methods: Any, route: Any) -> tuple[str, frozenset[str], Scope | str | None]:
    whole = prefix + path
    row_methods = frozenset(methods or ())
    if not whole.startswith(API + "/"):
        return whole, row_methods, "public" if whole in PUBLIC else Scope.READ  # the gate's rule
    declaration = declared(route) if isinstance(route, APIRoute) else None
    if declaration is None:
        return whole, row_methods, None
    return whole, row_methods, declaration.scope or "public"
