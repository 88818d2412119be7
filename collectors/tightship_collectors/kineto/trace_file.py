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
from pathlib import Path

from tightship_collectors.jobs.user_folder import FILE_FLAGS, user_folder

EDGE_BYTES = 64 * 1024
"""`trace_id` stands in the head of a Kineto trace, in some releases behind the events."""
CHUNK_BYTES = 1024 * 1024
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


def pack(fd: int, target: Path) -> tuple[int, str]:
    """Compress the file behind `fd` to `target`, which appears only when complete.

    :returns: bytes and sha256 of the compressed file.
    :raises OSError: the disk is full or not writable; nothing is left behind.
    """
    draft = target.with_name(target.name + ".new")
    digest, size, position = hashlib.sha256(), 0, 0
    compressor = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    try:
        with draft.open("wb") as out:
            while chunk := os.pread(fd, CHUNK_BYTES, position):
                position += len(chunk)
                size += _put(out.fileno(), compressor.compress(chunk), digest)
            size += _put(out.fileno(), compressor.flush(), digest)
            os.fsync(out.fileno())
        draft.rename(target)
    except OSError:
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
