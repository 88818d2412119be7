"""The text of a trace file as a stream of blocks: local path or URL, plain or gzip, distinguished by content."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tightship_analyzers.trace.limits import Limits, TraceError
from tightship_analyzers.trace.names import clean
from tightship_platform.extras import require_driver
from tightship_platform.units import format_bytes

GZIP_MAGIC = b"\x1f\x8b"
COMPRESSED_READ = 2**16
COMPRESSED_STEP = 2**12
"""Given to the decompressor at a time: where it finds damage, the text of this step is lost."""

Progress = Callable[[int, int], None]
"""Called now and then with (bytes of the file read so far, bytes of the whole file or 0 where unknown)."""


class TextSource:
    """Yields the file's text in blocks of at most `limits.block_bytes`; what went wrong on the way is in `damage`."""

    def __init__(self, source: str | os.PathLike[str], limits: Limits, progress: Progress | None = None) -> None:
        self._location = os.fspath(source)
        self.source = clean(self._location, 1000)
        """For people."""
        self.limits = limits
        self.damage: str | None = None
        """Why the compressed stream ended early; None while it is sound."""
        self._progress = progress
        self.read_bytes = 0
        """Of the file, so far."""
        self._text_bytes = 0
        self._file_bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        try:
            with self._opened() as file:
                head = file.read(min(COMPRESSED_READ, max(self.limits.block_bytes, len(GZIP_MAGIC))))
                blocks = self._gunzip(file, head) if head.startswith(GZIP_MAGIC) else self._plain(file, head)
                for block in blocks:
                    self._count(len(block))
                    yield block
        except OSError as error:
            raise TraceError(f"Trace {self.source} cannot be read: {error.strerror or error}") from None

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        if "://" in self._location:
            file = self._opened_url()
        else:
            path = Path(self._location)
            if path.is_dir():
                raise TraceError(f"Trace {self.source} is a folder; give a .json or .json.gz file")
            if not path.exists():
                raise TraceError(f"No trace at {self.source}; give a .json or .json.gz file or a URL")
            file = path.open("rb")
            self._file_bytes = path.stat().st_size
        with file:
            yield file

    def _opened_url(self) -> IO[bytes]:
        require_driver(self._location)
        import fsspec

        try:
            file: Any = fsspec.open(self._location, "rb").open()
        except FileNotFoundError as error:  # fsspec raises it for whatever goes wrong on the way, too.
            if why := _no_answer(error):
                raise TraceError(f"Trace {self.source} cannot be opened: {why}") from None
            raise TraceError(f"No trace at {self.source}") from None
        except Exception as error:  # Each file system raises its own library's errors.
            raise TraceError(f"Trace {self.source} cannot be opened: {clean(str(error), 300)}") from error
        self._file_bytes = int(getattr(file, "size", 0) or 0)
        opened: IO[bytes] = file
        return opened

    def _plain(self, file: IO[bytes], head: bytes) -> Iterator[bytes]:
        block = head
        while block:
            self._advance(len(block))
            yield block
            block = file.read(self.limits.block_bytes)

    def _gunzip(self, file: IO[bytes], head: bytes) -> Iterator[bytes]:
        """Member after member; memory stays bounded because each call may return one block at most."""
        from isal import igzip_lib

        data, used = head, 0
        decompressor = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        while True:
            step = b""
            if decompressor.needs_input:
                if used == len(data):
                    data, used = file.read(COMPRESSED_READ), 0
                    if not data:
                        self.damage = "the gzip stream is cut off"
                        return
                step = data[used : used + COMPRESSED_STEP]
                used += len(step)
                self._advance(len(step))
            try:
                block = decompressor.decompress(step, self.limits.block_bytes)
            except (igzip_lib.error, ValueError) as error:  # type: ignore[misc]
                self.damage = f"the gzip stream is damaged near byte {self.read_bytes} of the file ({error})"
                return
            if block:
                yield block
            if decompressor.eof:
                rest = decompressor.unused_data + data[used:]
                self._advance(-len(decompressor.unused_data))
                data, used = self._next_member(file, rest), 0
                if not data:
                    return
                decompressor = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)

    def _next_member(self, file: IO[bytes], rest: bytes) -> bytes:
        """The start of a further gzip member, past any padding; empty at the end, or where something else follows."""
        while True:
            member = rest.lstrip(b"\0")
            self._advance(len(rest) - len(member))
            if len(member) < len(GZIP_MAGIC):
                rest = member + file.read(COMPRESSED_READ)
                if len(rest) > len(member):
                    continue
            if member and not member.startswith(GZIP_MAGIC):
                self._advance(len(member))
                return b""
            return member

    def mark_complete(self) -> None:
        """Progress: another process has read the rest."""
        self._advance(self._file_bytes - self.read_bytes)

    def _advance(self, count: int) -> None:
        self.read_bytes += count
        if self._progress is not None and count > 0:
            self._progress(self.read_bytes, self._file_bytes)

    def _count(self, size: int) -> None:
        self._text_bytes += size
        text, limits = self._text_bytes, self.limits
        if text > limits.text_bytes:
            raise TraceError(
                f"Trace {self.source} holds more than {format_bytes(limits.text_bytes)} of text at byte {text}; "
                "record a shorter window"
            )
        if text > limits.ratio_from_bytes and text > limits.ratio * self.read_bytes:
            raise TraceError(
                f"Trace {self.source} unpacks to more than {limits.ratio} times its size at byte {text}; "
                "that is a decompression bomb, not a trace"
            )


def _no_answer(error: BaseException) -> str:
    """What kept the address from answering, found behind the error; empty where it answered that nothing is there."""
    cause = error.__cause__ or error.__context__
    while cause is not None:
        status = getattr(cause, "status", None)
        if isinstance(status, int) and status not in (404, 410):
            return f"the server answers {status}"
        if isinstance(cause, ConnectionError | TimeoutError | socket.gaierror):
            named = cause.errno is not None and cause.errno > 0
            reason = os.strerror(cause.errno or 0) if named else cause.strerror or type(cause).__name__
            return f"the address does not answer ({reason})"
        cause = cause.__cause__ or cause.__context__
    return ""
