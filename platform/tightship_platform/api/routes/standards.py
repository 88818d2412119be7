"""Metrics as fleets already send them: Prometheus remote-write and OTLP over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

from fastapi import Depends, Request
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.responses import JSONResponse, Response

from tightship_platform.api.auth import reporter
from tightship_platform.api.errors import line, outside_of_routes
from tightship_platform.api.reply import Config, Db, count_stored_values
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.database.engine import Database
from tightship_platform.errors import Forbidden, Invalid, TightshipError
from tightship_platform.ingest.standards.collected import Collected, Outcome, collect
from tightship_platform.ingest.standards.compressed import from_gzip, from_snappy
from tightship_platform.ingest.standards.measured import apply_measured, by_host, find_devices
from tightship_platform.ingest.standards.otlp import read_protobuf
from tightship_platform.ingest.standards.otlp_json import read_json
from tightship_platform.ingest.standards.protobuf import write_bytes, write_number
from tightship_platform.ingest.standards.remote_write import read_request_1, read_request_2
from tightship_platform.ingest.standards.series import Series
from tightship_platform.settings import Settings
from tightship_platform.units import now_ns, plural
from tightship_platform.vocabulary import Scope

router = scoped_router("standards")
_PROTOBUF, _JSON = "application/x-protobuf", "application/json"
_MESSAGES: dict[str, Callable[[bytes], Iterator[Series]]] = {
    "prometheus.writerequest": read_request_1,
    "io.prometheus.write.v2.request": read_request_2,
}
_WRITTEN = "X-Prometheus-Remote-Write-{}-Written"
_INVALID_ARGUMENT, _UNAVAILABLE = 3, 14
"""Codes of `google.rpc.Status`."""


class UnsupportedMediaType(TightshipError):
    """The body is of a kind that is not read here."""

    http_status = 415


async def _raw(request: Request) -> bytes:
    return await request.body()


Raw = Annotated[bytes, Depends(_raw)]


def _body(*kinds: str) -> Any:
    return {"requestBody": {"required": True, "content": {kind: {} for kind in kinds}}}


@router.post("/prometheus/write", dependencies=[needs(Scope.INGEST)], status_code=204, openapi_extra=_body(_PROTOBUF))
def write(body: Raw, request: Request, database: Db, settings: Config) -> Response:
    """Prometheus remote-write 1.0 and 2.0: a snappy block of protobuf. Metrics that docs/standards.md lists are stored
    as samples of their device; others, and values that say that there is none, are counted and left out. A value that
    cannot be, and one of a host of another team's, is refused with 400, and the rest is stored all the same."""
    read = _message(request.headers.get("content-type", ""))
    if request.headers.get("content-encoding", "").strip().lower() != "snappy":
        raise UnsupportedMediaType(
            f"The body's encoding is {request.headers.get('content-encoding', '')[:60]!r}; remote-write sends snappy"
        )
    found = _store(read(from_snappy(body)), "remote-write", database, settings)
    headers = {_WRITTEN.format("Samples"): str(found.counts.total() - found.refused)}
    headers |= {_WRITTEN.format(kind): "0" for kind in ("Histograms", "Exemplars")}
    if found.refused:
        return line(_refusal(found), 400, headers)
    return Response(status_code=204, headers=headers)


@router.post("/otlp/v1/metrics", dependencies=[needs(Scope.INGEST)], openapi_extra=_body(_PROTOBUF, _JSON))
def export(body: Raw, request: Request, database: Db, settings: Config) -> Response:
    """OTLP metrics over HTTP, in protobuf or JSON, with gzip or without. What is stored and what not is as with
    remote-write; refused points are counted in the answer's `partial_success`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (_PROTOBUF, _JSON):
        raise UnsupportedMediaType(f"The body is {kind[:60]!r}; OTLP sends {_PROTOBUF} or {_JSON}")
    is_json = kind == _JSON
    try:
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("gzip", "identity", ""):
            raise UnsupportedMediaType(f"The body's encoding is {encoding[:60]!r}; send gzip, or none")
        unpacked = from_gzip(body) if encoding == "gzip" else body
        found = _store((read_json if is_json else read_protobuf)(unpacked), "otlp", database, settings)
    except (TightshipError, DBAPIError, PoolTimeout) as error:
        refusal = outside_of_routes(error)
        return _status(refusal, str(error) if isinstance(error, TightshipError) else "", is_json=is_json)
    reason = _refusal(found) if found.refused else ""
    if is_json:
        refused = {"rejectedDataPoints": str(found.refused), "errorMessage": reason}
        return JSONResponse({"partialSuccess": refused} if found.refused else {})
    partial = write_number(1, found.refused) + write_bytes(2, reason.encode())
    return Response(write_bytes(1, partial), media_type=_PROTOBUF)


def _message(content_type: str) -> Callable[[bytes], Iterator[Series]]:
    kind, *parameters = (part.strip().lower() for part in content_type.split(";"))
    named = next((text[6:].strip('"') for text in parameters if text.startswith("proto=")), "prometheus.writerequest")
    if kind != _PROTOBUF or named not in _MESSAGES:
        raise UnsupportedMediaType(
            f"The body is {content_type[:100]!r}; remote-write sends {_PROTOBUF} with proto=prometheus.WriteRequest "
            "or proto=io.prometheus.write.v2.Request"
        )
    return _MESSAGES[named]


def _store(series: Iterator[Series], standard: str, database: Database, settings: Settings) -> Collected:
    """Store what can be, host by host: what a host may not send costs none of the others.

    :raises DBAPIError: there is trouble with the database; sent again, what is stored already changes nothing.
    """
    now = now_ns()
    found = collect(series, now)
    if found.rows:
        with database.session() as session:
            hosts, lost = by_host(found.rows, find_devices(session, found.rows))
        for place, reason in lost.items():
            found.refuse(Outcome.INVALID, sum(map(len, found.rows[place].values())), reason)
        collected = sum(len(row) for instants in found.rows.values() for row in instants.values())
        lost_values = sum(len(row) for place in lost for row in found.rows[place].values())
        found.counts[Outcome.DOUBLED] += collected - lost_values - sum(host.values for host in hosts)
        for host in sorted(hosts, key=lambda host: host.name):
            try:
                with database.session() as session:
                    stored, too_old = apply_measured(
                        session, host, reporter=reporter(), keep_days=settings.keep_days, now=now
                    )
            except (Forbidden, Invalid) as error:
                outcome = Outcome.FORBIDDEN if isinstance(error, Forbidden) else Outcome.INVALID
                found.refuse(outcome, host.values, str(error))
                continue
            found.counts[Outcome.STORED] += stored
            found.refuse(Outcome.TOO_OLD, too_old, "It is older than the server keeps samples")
    count_stored_values(standard, {outcome.value: count for outcome, count in found.counts.items()})
    return found


def _refusal(found: Collected) -> str:
    total = found.counts.total()
    return f"{found.refused} of {plural(total, 'value')} were not stored. The first: {found.reason}"


def _status(refusal: JSONResponse, message: str, *, is_json: bool) -> Response:
    """A refusal as OTLP has it: a `google.rpc.Status`."""
    code = _UNAVAILABLE if refusal.status_code >= 500 else _INVALID_ARGUMENT
    message = message or "The database does not answer now; nothing was lost, send it again"
    headers = {name: value for name, value in refusal.headers.items() if name == "retry-after"}
    if is_json:
        return JSONResponse({"code": code, "message": message}, status_code=refusal.status_code, headers=headers)
    body = write_number(1, code) + write_bytes(2, message.encode(errors="replace"))
    return Response(body, status_code=refusal.status_code, media_type=_PROTOBUF, headers=headers)
