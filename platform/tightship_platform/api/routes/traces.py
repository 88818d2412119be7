"""Trace files: taken in pieces from agents, given out whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Header, Query, Request
from fastapi.concurrency import contextmanager_in_threadpool, run_in_threadpool
from starlette.responses import StreamingResponse

from tightship_platform import captures, validation
from tightship_platform.api.auth import reporter, require
from tightship_platform.api.bodies import Stalled
from tightship_platform.api.reply import Answer, Config, Db
from tightship_platform.api.scopes import needs, scoped_router
from tightship_platform.captures import files, store_owner
from tightship_platform.captures.artifact_store import CHUNK_BYTES, ArtifactStore, Stored, open_artifacts, trace_key
from tightship_platform.captures.imported import check_file
from tightship_platform.database import ids
from tightship_platform.database.audit import audit
from tightship_platform.database.engine import Database
from tightship_platform.errors import NotFound, TooLarge
from tightship_platform.ingest import imports
from tightship_platform.queries.captures import find_trace, stored_url
from tightship_platform.settings import Settings
from tightship_platform.tasks.app import ANALYZE_CAPTURE, send
from tightship_platform.units import format_bytes
from tightship_platform.vocabulary import Scope
from tightship_platform.wire import TraceReceived

router = scoped_router("traces")

STALL_S = 60.0
"""An upload that brings nothing for this long is given up."""


class TraceFile(StreamingResponse):
    """A trace as it was uploaded."""

    media_type = "application/gzip"


@router.put("/captures/{key}/traces/{rank}", dependencies=[needs(Scope.INGEST)], response_model=TraceReceived)
async def put_trace(
    key: str,
    rank: int,
    pid: Annotated[int, Query()],
    host: Annotated[str, Query()],
    x_sha256: Annotated[str, Header(description="SHA-256 of the body, 64 lower-case hexadecimal digits")],
    request: Request,
    database: Db,
    settings: Config,
    attempt: Annotated[int | None, Query(description="The lease under which the file was recorded")] = None,
    recording: Annotated[int, Query(alias="pass", description="2: the trace of the second pass")] = 1,
) -> Answer:
    """Upload the trace of one rank; the body is the file.

    The file is kept whole or not at all: a body that is cut off, too large, or of another hash leaves nothing behind.
    With the last expected file the capture becomes `uploaded`, and its analysis is sent off.
    """
    _check_announced(request, settings)
    # Before the first byte is read: a file that nobody wants is refused, not received.
    artifact = await run_in_threadpool(_expected_key, database, key, rank, pid, host, x_sha256, attempt, recording)
    store = await run_in_threadpool(_open_store, database, settings)
    with request.app.state.drain.upload():
        stored = await _receive(request, store, artifact, settings.upload_max_bytes, x_sha256)
        trace_id, due = await run_in_threadpool(
            _record, database, store, key, stored, rank, pid, host, attempt, recording
        )
    for _ in range(due):
        await run_in_threadpool(send, settings, ANALYZE_CAPTURE, key)
    return Answer(TraceReceived(trace=trace_id))


@router.put(
    "/fleets/{name}/captures/{key}/traces/{rank}", dependencies=[needs(Scope.INGEST)], response_model=TraceReceived
)
async def put_imported(
    name: str,
    key: str,
    rank: int,
    x_sha256: Annotated[str, Header(description="SHA-256 of the body, 64 lower-case hexadecimal digits")],
    request: Request,
    database: Db,
    settings: Config,
) -> Answer:
    """Upload the trace of one rank of an imported capture; the body is the file, compressed (gzip).

    As that of a capture that was asked for, it is kept whole or not at all.
    """
    _check_announced(request, settings)
    artifact = await run_in_threadpool(_awaited_key, database, name, key, rank, x_sha256)
    store = await run_in_threadpool(_open_store, database, settings)
    with request.app.state.drain.upload():
        stored = await _receive(request, store, artifact, settings.upload_max_bytes, x_sha256)
        trace_id, due = await run_in_threadpool(_record_imported, database, store, key, stored, rank)
    for _ in range(due):
        await run_in_threadpool(send, settings, ANALYZE_CAPTURE, key)
    return Answer(TraceReceived(trace=trace_id))


def _check_announced(request: Request, settings: Settings) -> None:
    """:raises TooLarge: the body says itself that it is larger than what is accepted."""
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > settings.upload_max_bytes:
        raise TooLarge(
            f"The file has {format_bytes(int(announced))} and at most {format_bytes(settings.upload_max_bytes)} are "
            "accepted (TIGHTSHIP_UPLOAD_MAX_BYTES); record a shorter window"
        )


def _expected_key(
    database: Database, key: str, rank: int, pid: int, host: str, sha256: str, attempt: int | None, recording: int
) -> str:
    with database.session() as session:
        capture = captures.check_trace(
            session,
            key,
            rank=rank,
            pid=pid,
            host=host,
            sha256=sha256,
            attempt=attempt,
            recording=recording,
            reporter=reporter(),
        )
        return trace_key(capture.run.key, capture.key, rank, sha256)


def _awaited_key(database: Database, name: str, key: str, rank: int, sha256: str) -> str:
    validation.count("Rank", rank, most=validation.RANK_MAX)
    validation.sha256(sha256)
    with database.session() as session:
        imports.require_capture(session, name, key, reporter=reporter())
        capture = check_file(session, key, rank, sha256)
        return trace_key(capture.run.key, capture.key, rank, sha256)


def _record_imported(database: Database, store: ArtifactStore, key: str, stored: Stored, rank: int) -> tuple[int, int]:
    """As `_record`."""
    with database.session() as session:
        result = files.record_imported(session, store, key, stored, rank=rank)
        return result.trace.id, captures.count_waiting(session, key) if result.completed else 0


def _open_store(database: Database, settings: Settings) -> ArtifactStore:
    """The store; one without traces becomes this installation's, so that sweeps may remove files from it."""
    store = open_artifacts(settings)
    store_owner.claim(database, store)
    return store


async def _receive(request: Request, store: ArtifactStore, artifact: str, max_bytes: int, sha256: str) -> Stored:
    """Pass the body on to the store in pieces of about CHUNK_BYTES, off the event loop."""
    writing = store.writing(artifact, max_bytes=max_bytes, sha256=sha256)
    async with contextmanager_in_threadpool(writing) as writer:
        piece = bytearray()
        async for chunk in _flowing(request.stream()):
            piece += chunk
            if len(piece) >= CHUNK_BYTES:
                await run_in_threadpool(writer.write, bytes(piece))
                piece.clear()
        await run_in_threadpool(writer.write, bytes(piece))
    return writer.stored


async def _flowing(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The chunks, as long as they come: a sender that vanished without a word must not keep its file open.

    :raises Stalled: nothing came for `STALL_S`.
    """
    while True:
        try:
            chunk = await asyncio.wait_for(anext(chunks), STALL_S)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise Stalled(f"No data arrived for {STALL_S:g} s; send the file again") from error
        yield chunk


def _record(
    database: Database,
    store: ArtifactStore,
    key: str,
    stored: Stored,
    rank: int,
    pid: int,
    host: str,
    attempt: int | None,
    recording: int,
) -> tuple[int, int]:
    """The id of the trace, and how many traces of a capture that is now complete wait for their analysis."""
    with database.session() as session:
        result = files.record(
            session, store, key, stored, rank=rank, pid=pid, host=host, attempt=attempt, recording=recording
        )
        return result.trace.id, captures.count_waiting(session, key) if result.completed else 0


@router.get("/traces/{key}/file", dependencies=[needs(Scope.READ)], response_class=TraceFile)
def get_file(
    key: str,
    database: Db,
    settings: Config,
    recording: Annotated[int, Query(alias="pass", description="2: the trace of the second pass")] = 1,
) -> TraceFile:
    """The trace file as it was uploaded (gzip of Kineto's JSON), for Perfetto or `tightship analyze`."""
    with database.session() as session:
        trace = find_trace(session, ids.find_number(session, ids.TRACE, key))
        url = stored_url(trace, recording)
        if trace.removed_ns is not None:
            hint = f"removed {settings.keep_trace_days} days after it was recorded (TIGHTSHIP_KEEP_TRACE_DAYS)"
            raise NotFound("stored file", url, hint)
    store = open_artifacts(settings)
    size = store.size(url)
    if size is None:
        raise NotFound("stored file", url, "it was deleted, or TIGHTSHIP_ARTIFACTS_URL points elsewhere")
    with database.session() as session:
        audit(session, require(Scope.READ).name, "trace.download", str(trace.id), recording=recording)
    which = "-second-pass" if recording > 1 else ""
    headers = {
        "content-length": str(size),
        "content-disposition": f'attachment; filename="trace-{trace.id}{which}.json.gz"',
    }
    return TraceFile(store.chunks(url), headers=headers)
