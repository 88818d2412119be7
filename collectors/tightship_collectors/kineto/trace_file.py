"""Trace files in a folder that belongs to the job's user: found, checked, packed and removed without trusting a name.

The job's user may put anything under any name there; see [Note: in a user's folder].
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import zlib
from collections.abc import Generator
from pathlib import Path

from tightship_collectors.jobs.user_folder import FILE_FLAGS, user_folder
from tightship_collectors.kineto.disk_room import require_room
from tightship_platform.errors import TooLarge
from tightship_platform.units import format_bytes

EDGE_BYTES = 64 * 1024
"""`trace_id` stands in the head of a Kineto trace, in some releases behind the events."""
CHUNK_BYTES = 1024 * 1024
TURN_BYTES = 64 * 1024 * 1024
"""Packed at a time: about half a second of work."""
GZIP_LEVEL = 1
"""A trace shrinks about tenfold at level 1 already; higher levels cost the host more than the network."""
_GZIP_WINDOW = 31  # zlib's way to ask for a gzip header


class BadTrace(Exception):
    """A file is not the trace that was asked for; the message says why."""


def trace_size(folder: Path, name: str, uid: int) -> int | None:
    """Bytes of a regular file of `uid`; None when there is none."""
    try:
        with user_folder(folder.parent, uid, folder.name) as fd:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) and status.st_uid == uid else None


def open_trace(folder: Path, name: str, uid: int, trace_id: str) -> int:
    """A descriptor of a complete trace that carries the id asked for.

    :raises BadTrace: there is none, or it is something else.
    """
    try:
        with user_folder(folder.parent, uid, folder.name) as folder_fd:
            fd = os.open(name, os.O_RDONLY | FILE_FLAGS, dir_fd=folder_fd)
    except OSError as error:
        raise BadTrace(f"{error.filename}: {error.strerror}") from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != uid:
            raise BadTrace(f"{name} is not a regular file of the run's user")
        edges = os.pread(fd, EDGE_BYTES, 0) + os.pread(fd, EDGE_BYTES, max(0, status.st_size - EDGE_BYTES))
        found = re.search(rb'"trace_id"\s*:\s*"([^"]{0,200})"', edges)
        if found is None or found[1] != trace_id.encode():
            raise BadTrace(f"{name} does not carry the trace id {trace_id}")
    except BaseException:
        os.close(fd)
        raise
    return fd


def pack(fd: int, target: Path, *, max_bytes: int) -> Generator[None, None, tuple[int, str]]:
    """Compress what the file behind `fd` holds at the first step to `target`, which appears only when complete.

    Takes a step at a time, of TURN_BYTES each. Whatever ends it early leaves nothing behind.

    :returns: bytes and sha256 of the compressed file.
    :raises TooLarge: the file has more than `max_bytes`, holes included.
    :raises OSError: the disk is full, or about to be (see `require_room`), or not writable.
    """
    end, position = os.fstat(fd).st_size, 0
    if end > max_bytes:
        limit = f"{format_bytes(max_bytes)} (TIGHTSHIP_TRACE_MAX_BYTES)"
        raise TooLarge(f"it has {format_bytes(end)} and at most {limit} are delivered; record a shorter window")
    draft = target.with_name(target.name + ".new")
    digest, size, turn_ends = hashlib.sha256(), 0, TURN_BYTES
    compressor = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    try:
        with draft.open("wb") as out:
            # Not to its end: a job that goes on writing would never let it come.
            while chunk := os.pread(fd, min(CHUNK_BYTES, end - position), position):
                position += len(chunk)
                require_room(out.fileno(), target.parent)
                size += _put(out.fileno(), compressor.compress(chunk), digest)
                if position >= turn_ends:
                    turn_ends += TURN_BYTES
                    yield
            size += _put(out.fileno(), compressor.flush(), digest)
            os.fsync(out.fileno())
        draft.rename(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return size, digest.hexdigest()


def _put(fd: int, data: bytes, digest: hashlib._Hash) -> int:
    digest.update(data)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return len(data)


def remove_traces(folder: Path, uid: int, prefix: str) -> None:
    """Remove every file of a capture, complete or not."""
    with (
        contextlib.suppress(OSError),
        user_folder(folder.parent, uid, folder.name) as fd,
        os.scandir(fd) as entries,
    ):
        for entry in entries:
            if entry.name.startswith(prefix):
                with contextlib.suppress(OSError):
                    os.unlink(entry.name, dir_fd=fd)
