"""The trace store: a folder or any fsspec URL. Files appear whole or not at all, under keys that are checked here."""

from __future__ import annotations

import errno
import hashlib
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import fsspec

from tightship_platform.errors import Invalid, NotFound, TooLarge
from tightship_platform.extras import require_driver
from tightship_platform.settings import Settings
from tightship_platform.units import NS_PER_S, format_bytes

CHUNK_BYTES = 1 << 20
TRACES = "traces"
_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,149}", re.ASCII)
PARTIAL = ".partial-"
"""Between the name of a file that is being written and a random number."""
_Answer = TypeVar("_Answer")
_ABSENT = (FileNotFoundError, IsADirectoryError)
"""What file systems raise where there is no such file."""

_NEVER = (PermissionError, FileNotFoundError, NotADirectoryError, FileExistsError)
"""What they raise where writing will not work later either."""


class StoreTrouble(OSError):
    """The store does not answer, is full, or is not the one that it should be. It is the file's fault in no case, so
    what was to be done is tried again; the message is one line."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A file that lies in the store."""

    key: str
    sha256: str
    size_bytes: int


def trace_key(run: str, capture: str, rank: int, sha256: str) -> str:
    """Where the trace of a rank lies. Its content is part of the name: no upload, however late, replaces another's."""
    return _checked(f"{TRACES}/{run}/{capture}/rank-{rank}-{sha256}.json.gz")


class ArtifactStore:
    """Keys are relative paths of plain segments: `traces/<run>/<capture>/rank-0-<sha256>.json.gz`."""

    def __init__(self, url: str) -> None:
        require_driver(url)
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError, OSError) as error:
            expected = f"a folder or an fsspec URL whose driver is installed ({error})"
            raise Invalid("TIGHTSHIP_ARTIFACTS_URL", url, expected) from error
        self.url = url

    @property
    def shown_url(self) -> str:
        """The URL without user and password, fit to be shown."""
        return re.sub(r"//[^/]*@", "//", self.url, count=1)

    def write(self, key: str, chunks: Iterable[bytes], *, max_bytes: int, sha256: str | None = None) -> Stored:
        """Store a stream. A file that is too large, cut short by its sender, or of another hash leaves nothing behind;
        an older file of the same key stays until the new one is whole.

        :raises TooLarge: more than `max_bytes`.
        :raises Invalid: the key cannot be, or the content has not the SHA-256 that was announced.
        """
        with self.writing(key, max_bytes=max_bytes, sha256=sha256) as writer:
            for chunk in chunks:
                writer.write(chunk)
        return writer.stored

    @contextmanager
    def writing(self, key: str, *, max_bytes: int, sha256: str | None = None) -> Iterator[ArtifactWriter]:
        """As `write`, for a caller who gets its chunks piecemeal; the file appears when the block ends well."""
        path = self._path(key)
        partial = f"{path}{PARTIAL}{uuid.uuid4().hex}"
        self._ask(lambda: self._files.makedirs(path.rpartition("/")[0], exist_ok=True))
        kept = False
        try:
            file = self._ask(lambda: self._files.open(partial, "wb"))
            try:
                writer = ArtifactWriter(key, lambda chunk: self._ask(lambda: file.write(chunk)), max_bytes)
                yield writer
                writer.finish(sha256)
            finally:
                self._ask(file.close)
            self._ask(lambda: self._files.mv(partial, path))
            kept = True
        finally:
            if not kept:
                with suppress(OSError):
                    self._ask(lambda: self._files.rm_file(partial))

    def require_writable(self) -> None:
        """Write a small file and remove it.

        :raises Invalid: this process may not, or there is no such place.
        :raises StoreTrouble: the store does not answer now, or is full.
        """
        key = f"{TRACES}/probe-{uuid.uuid4().hex}"
        try:
            self.write(key, [b"probe"], max_bytes=CHUNK_BYTES)
            self.delete(key)
        except StoreTrouble as trouble:
            cause = trouble.__cause__
            if isinstance(cause, _NEVER) or (isinstance(cause, OSError) and cause.errno == errno.EROFS):
                why = cause.strerror or str(cause)
                raise Invalid(
                    "TIGHTSHIP_ARTIFACTS_URL", self.shown_url, f"a store that can be written ({why})"
                ) from None
            raise

    @contextmanager
    def open(self, key: str) -> Iterator[ArtifactReader]:
        """The file for reading, seekable.

        :raises NotFound: there is none.
        """
        path = self._path(key)
        try:
            file = self._ask(lambda: self._files.open(path, "rb"), absent=_ABSENT)
        except _ABSENT as error:
            raise NotFound("stored file", key, "it was deleted, or TIGHTSHIP_ARTIFACTS_URL points elsewhere") from error
        with file:
            yield ArtifactReader(file, self._ask)

    def chunks(self, key: str) -> Iterator[bytes]:
        """The file piece by piece.

        :raises NotFound: there is none (with the first piece).
        """
        with self.open(key) as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def read_start(self, key: str, size_bytes: int) -> bytes:
        """At most that many bytes, as they are in the store now.

        :raises NotFound: there is no such file.
        """
        self._files.invalidate_cache()
        with self.open(key) as file:
            return file.read(size_bytes)

    def size(self, key: str) -> int | None:
        """Bytes of the file; None when there is none."""
        path = self._path(key)
        try:
            # Not `isfile`: it takes any trouble for a file that is not there.
            info = self._ask(lambda: self._files.info(path), absent=_ABSENT)
        except _ABSENT:
            return None
        return int(info["size"]) if info["type"] == "file" else None

    def delete(self, key: str) -> bool:
        """Remove a file; False when there was none."""
        path = self._path(key)
        try:
            self._ask(lambda: self._files.rm_file(path), absent=(FileNotFoundError,))
        except FileNotFoundError:
            return False
        return True

    def folders(self, key: str) -> list[str]:
        """Keys of the folders directly below one, in order; none where there is no such folder."""
        return [self._key(entry["name"]) for entry in self._entries(key) if entry["type"] == "directory"]

    def files(self, key: str) -> list[str]:
        """Keys of all files below a folder, in order, those included that are still being written."""
        path = self._path(key)
        self._files.invalidate_cache()  # remote stores remember what they listed before
        return sorted(self._key(found) for found in self._ask(lambda: self._files.find(path)))

    def modified_ns(self, key: str) -> int | None:
        """When the file was last written; None when there is none."""
        path = self._path(key)
        try:
            modified: datetime = self._ask(lambda: self._files.modified(path), absent=(FileNotFoundError,))
        except FileNotFoundError:
            return None
        if modified.tzinfo is None:
            modified = modified.replace(tzinfo=UTC)
        return int(modified.timestamp() * NS_PER_S)

    def _entries(self, key: str) -> list[dict[str, Any]]:
        path = self._path(key)
        self._files.invalidate_cache()
        try:
            entries = self._ask(lambda: self._files.ls(path, detail=True), absent=(FileNotFoundError,))
        except FileNotFoundError:
            return []
        return sorted(entries, key=lambda entry: str(entry["name"]))

    def _ask(self, question: Callable[[], _Answer], *, absent: tuple[type[OSError], ...] = ()) -> _Answer:
        """What the file system answers. Each has its library's own errors; all but `absent` become StoreTrouble."""
        try:
            return question()
        except absent:
            raise
        except StoreTrouble:
            raise
        except Exception as error:
            why = getattr(error, "strerror", None) or f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise StoreTrouble(f"The artifact store {self.shown_url} cannot be used now ({why})") from error

    def _key(self, path: str) -> str:
        return path.rstrip("/").removeprefix(f"{self._root.rstrip('/')}/")

    def _path(self, key: str) -> str:
        return f"{self._root.rstrip('/')}/{_checked(key)}"


class ArtifactWriter:
    """Takes the pieces of one file."""

    def __init__(self, key: str, put: Callable[[bytes], object], max_bytes: int) -> None:
        self._put = put
        self._hash = hashlib.sha256()
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._key = key
        self._stored: Stored | None = None

    def write(self, chunk: bytes) -> None:
        """Append.

        :raises TooLarge: the file exceeds its limit.
        """
        self._size_bytes += len(chunk)
        if self._size_bytes > self._max_bytes:
            limit = f"{format_bytes(self._max_bytes)} (TIGHTSHIP_UPLOAD_MAX_BYTES)"
            raise TooLarge(f"The file exceeds {limit}; record a shorter window")
        self._hash.update(chunk)
        self._put(chunk)

    def finish(self, sha256: str | None) -> None:
        """Compare with the announced hash."""
        found = self._hash.hexdigest()
        if sha256 is not None and found != sha256:
            raise Invalid("SHA-256 of the file", found, f"{sha256} as announced; send it again")
        self._stored = Stored(key=self._key, sha256=found, size_bytes=self._size_bytes)

    @property
    def stored(self) -> Stored:
        """What was stored; known when the `writing` block has ended well."""
        if self._stored is None:
            raise RuntimeError("the file is not complete yet")
        return self._stored


class ArtifactReader:
    """One open file of the store."""

    def __init__(self, file: Any, ask: Callable[[Callable[[], Any]], Any]) -> None:
        self._file = file
        self._ask = ask

    def read(self, size_bytes: int = -1) -> bytes:
        """That many bytes, fewer at the end of the file; -1: all."""
        data: bytes = self._ask(lambda: self._file.read(size_bytes))
        return data

    def seek(self, offset: int) -> None:
        """Go on reading at that byte."""
        self._ask(lambda: self._file.seek(offset))


def open_artifacts(settings: Settings) -> ArtifactStore:
    """The store that the settings name.

    :raises Invalid: the URL cannot be used.
    """
    return ArtifactStore(settings.artifacts_url)


def _checked(key: str) -> str:
    segments = key.split("/")
    if not 1 <= len(segments) <= 8 or not all(_SEGMENT.fullmatch(segment) for segment in segments):
        raise Invalid("Key of a stored file", key, "segments of letters, digits, dots, dashes and underscores")
    return key
