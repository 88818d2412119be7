"""Layers whose weights and optimizer state are in files: memory-mapped, updated in place, whole after a crash.

[Note: undo log] A step changes the files of many layers in place, so a crash can leave anything between two steps.
Before the update of a layer its content (the pre-image) is written to the layer's undo file and made durable; only
then is the layer changed. When all layers of a step are changed and durable, the marker with the step's number is
replaced: that is the commit. A restart reads the marker, N, and writes back every valid pre-image that was taken for
step N + 1. So it finds the training after step N, whole, and a later marker makes older pre-images void by itself:
nothing is ever truncated. What does not move is written anew for each step, to one of two files in turn.
(After Crafty: Genc, Bond, Xu, "Crafty: efficient, HTM-compatible persistent transactions", PLDI 2020.)

Files are mapped through the page cache, so that the kernel decides what stays in memory; reads are asked for ahead.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast
from weakref import finalize

import torch
from torch import Tensor

from tightship_offload.errors import OffloadError
from tightship_offload.runtime.layer import Layer, Piece, lay_out

_VERSION = 1
_HEADER = struct.Struct("<8sQQI")
_MAGIC = b"tsundo01"
_HEADER_BYTES = 64
_CHUNK_BYTES = 2**20
_SYNC_FILE_RANGE_WAIT_BEFORE, _SYNC_FILE_RANGE_WRITE, _SYNC_FILE_RANGE_WAIT_AFTER = 1, 2, 4
_UNWRITTEN_BYTES = 8 * 2**20
"""Of a file that is written in one go, what may be in memory and not on the disk."""
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


@dataclass(frozen=True, kw_only=True)
class NvmeTier:
    """Where the files are, and whether a training that is there goes on."""

    folder: str | os.PathLike[str]
    resume: bool = False
    """Go on with the step after the last whole one, if there is one; False: refuse a folder that holds a training."""
    prefetch: int = 2
    """How many layers ahead files are read."""


class _Mapped:
    """One file of a fixed size, mapped."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        try:
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.posix_fallocate(self.fd, 0, size_bytes)
        except OSError as error:
            raise _refused(path, size_bytes, error) from error
        self._map = mmap.mmap(self.fd, size_bytes)
        self.slab = torch.frombuffer(self._map, dtype=torch.uint8)

    def read_ahead(self) -> None:
        self._map.madvise(mmap.MADV_WILLNEED)

    def begin_writing(self) -> None:
        """What is changed is on its way to the disk: the kernel can drop only pages that are there."""
        if _sync_file_range is not None:
            _sync_file_range(self.fd, 0, 0, _SYNC_FILE_RANGE_WRITE)

    def make_durable(self) -> None:
        self._map.flush()
        os.fdatasync(self.fd)


class _Outgoing:
    """A file that is written from its begin to its end, past the page cache: it is read again after a crash only."""

    def __init__(self, fd: int) -> None:
        self.size_bytes = 0
        self._fd = fd
        self._on_disk = 0
        self._error: OSError | None = None

    def write(self, content: bytes | memoryview) -> int:
        """A failure is raised by `end`: torch's writer, which calls this, reports it in other words."""
        size = memoryview(content).nbytes
        try:
            left = memoryview(content).cast("B")
            while left and self._error is None:
                written = os.write(self._fd, left[:_CHUNK_BYTES])
                left = left[written:]
                self.size_bytes += written
                if self.size_bytes - self._on_disk >= _UNWRITTEN_BYTES:
                    self._empty()
        except OSError as error:
            self._error = error
        return size

    def flush(self) -> None:
        """`end` does."""

    def end(self) -> None:
        """All of it is durable.

        :raises OSError: the disk did not take all of it.
        """
        if self._error is not None:
            raise self._error
        os.fsync(self._fd)
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def _empty(self) -> None:
        """Wait until what is written is on the disk, and take it out of memory."""
        begin, length = self._on_disk, self.size_bytes - self._on_disk
        if _sync_file_range is not None:
            how = _SYNC_FILE_RANGE_WAIT_BEFORE | _SYNC_FILE_RANGE_WRITE | _SYNC_FILE_RANGE_WAIT_AFTER
            _sync_file_range(self._fd, begin, length, how)
            os.posix_fadvise(self._fd, begin, length, os.POSIX_FADV_DONTNEED)
        self._on_disk = self.size_bytes


@dataclass
class _LayerFiles:
    layer: Layer
    weights: _Mapped
    undo: _Mapped | None = None
    state: _Mapped | None = None
    since: int = 0
    """The first step after which the state file counts."""
    layout: list[tuple[int, str, Piece]] | None = None
    """(place in the layer, key of the optimizer's state, where)"""

    def begin_writing(self) -> None:
        """See `_Mapped.begin_writing`."""
        for part in (self.weights, self.state):
            if part is not None:
                part.begin_writing()


class NvmeStore:
    """The files of one training. `before`, `after` and `commit` are called in the update lane."""

    def __init__(self, tier: NvmeTier, layers: Sequence[Layer], fingerprint: str, optimizer: str) -> None:
        """:raises OffloadError: the folder cannot be written, is in use, holds another training, or is too small."""
        self._folder = Path(tier.folder)
        self._prefetch = tier.prefetch
        self._who = {"version": _VERSION, "model": fingerprint, "optimizer": optimizer}
        self.point: Callable[[str], None] = lambda what: None
        """Called before each change of a file (tests end the process there)."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _refused(self._folder, 0, error) from error
        self._let_go = finalize(self, os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._open(tier, layers)
        except BlockingIOError as error:
            self.close()
            raise OffloadError(f"NVMe folder {self._folder} is in use by another process; give each its own") from error
        except BaseException:
            self.close()
            raise

    def _open(self, tier: NvmeTier, layers: Sequence[Layer]) -> None:
        self.step = self._committed()
        """Whole steps in the files; -1: none, not even the first weights."""
        self.resumes = self.step >= 0
        if self.resumes and not tier.resume:
            raise OffloadError(
                f"NVMe folder {self._folder} holds a training after step {self.step}; go on with resume=True, or "
                "empty it"
            )
        self._manifest: dict[str, Any] = self._read_manifest() if self.resumes else {}
        self._files = {
            layer.index: _LayerFiles(layer, _Mapped(self._path(layer.index, "weights"), layer.size_bytes))
            for layer in layers
        }
        self.rest: dict[str, Any] | None = self._recover() if self.resumes else None
        """What does not move, as it was after that step."""

    def slab(self, layer: Layer) -> Tensor:
        """Where the layer's weights live."""
        return self._files[layer.index].weights.slab

    def moved_in(self, layer: Layer) -> None:
        """The layer's weights are in its file, and need not be in memory any more."""
        self._files[layer.index].begin_writing()

    def read_ahead(self, order: Sequence[int]) -> None:
        """The layers that are needed next."""
        for index in order[: self._prefetch]:
            files = self._files[index]
            files.weights.read_ahead()
            if files.state is not None:
                files.state.read_ahead()

    # ---- a step ----------------------------------------------------------------------------------------------------

    def before(self, layer: Layer) -> None:
        """Make the layer's pre-image durable."""
        files = self._files[layer.index]
        parts = [files.weights] + ([files.state] if files.state is not None else [])
        length = sum(part.size_bytes for part in parts)
        if files.undo is None or files.undo.size_bytes < _HEADER_BYTES + length:
            files.undo = _Mapped(self._path(layer.index, "undo"), _HEADER_BYTES + length)
        fd, offset, check = files.undo.fd, _HEADER_BYTES, 0
        for part in parts:
            content = memoryview(part._map)
            for start in range(0, part.size_bytes, _CHUNK_BYTES):
                chunk = content[start : start + _CHUNK_BYTES]
                self.point("pre-image")
                _write(files.undo.path, fd, chunk, offset)
                check = zlib.crc32(chunk, check)
                offset += len(chunk)
        self.point("pre-image durable")
        os.fdatasync(fd)
        self.point("header")
        _write(files.undo.path, fd, memoryview(_HEADER.pack(_MAGIC, self.step + 1, length, check)), 0)
        self.point("header durable")
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # read again after a crash only

    def after(self, layer: Layer, states: dict[int, dict[str, Any]]) -> None:
        """The layer is changed; optimizer state that is new moves into a file."""
        self.point("layer changed")
        files = self._files[layer.index]
        try:
            self._keep_state(files, layer, states)
        finally:
            files.begin_writing()

    def _keep_state(self, files: _LayerFiles, layer: Layer, states: dict[int, dict[str, Any]]) -> None:
        tensors = [(at, key, value) for at, state in states.items() for key, value in state.items()]
        if files.layout is not None and len(files.layout) == len([t for t in tensors if isinstance(t[2], Tensor)]):
            return
        for _, key, value in tensors:
            if not isinstance(value, Tensor) and value is not None:
                raise OffloadError(f"The optimizer's state {key!r} is no tensor; it cannot be kept in files")
        kept = [(at, key, value) for at, key, value in tensors if isinstance(value, Tensor)]
        if not kept:
            return
        pieces, size = lay_out([value for _, _, value in kept])
        if files.layout is not None:
            raise OffloadError(
                f"Parameters of layer {layer.name!r} got optimizer state after others had; unfreeze them before apply"
            )
        files.state = _Mapped(self._path(layer.index, "state"), size)
        files.layout = [(at, key, piece) for (at, key, _), piece in zip(kept, pieces, strict=True)]
        files.since = self.step + 1
        for (at, key, value), piece in zip(kept, pieces, strict=True):
            self.point("state moves")
            home = piece.alone(files.state.slab)
            states[at][key] = home.copy_(value)

    def write_rest(self, rest: dict[str, Any]) -> None:
        """What does not move is changed: make it durable. The commit before is over; the next one says that it counts.

        From where it is, in the thread that steps: a copy, to be written later, would take as much memory again. From
        a device, torch copies one tensor at a time.
        """
        number = self.step + 1
        self._replace(
            f"rest-{number % 2}.pt", lambda file: torch.save({**rest, "step": number}, cast("IO[bytes]", file))
        )

    def commit(self) -> None:
        """All layers are changed: make it durable, then say so."""
        for files in self._files.values():
            self.point("layer durable")
            files.weights.make_durable()
            if files.state is not None:
                files.state.make_durable()
        number = self.step + 1
        layout = {
            str(index): {
                "since": files.since,
                "layout": [
                    [at, key, piece.offset, str(piece.dtype).removeprefix("torch."), piece.shape, piece.stride]
                    for at, key, piece in files.layout or []
                ],
            }
            for index, files in self._files.items()
        }
        manifest = {
            **self._who,
            "weights": {str(i): f.weights.size_bytes for i, f in self._files.items()},
            "state": layout,
        }
        if manifest != self._manifest:
            self._replace("manifest.json", lambda file: file.write(json.dumps(manifest).encode()))
            self._manifest = manifest
        self._replace("step", lambda file: file.write(f"{number}\n".encode()))
        self.step = number

    # ---- a start ---------------------------------------------------------------------------------------------------

    def _recover(self) -> dict[str, Any]:
        """Bring the files to the last whole step. What does not move, as it was then."""
        for index, files in self._files.items():
            entry = self._manifest["state"].get(str(index))
            if entry is None or len(self._manifest["state"]) != len(self._files):
                raise OffloadError(
                    f"NVMe folder {self._folder} holds a training in which other layers move; give the same window and "
                    "residents, or empty it"
                )
            if entry["layout"] and entry["since"] <= self.step:
                files.since = entry["since"]
                files.layout = [
                    (at, key, Piece(offset, getattr(torch, dtype), tuple(shape), tuple(stride)))
                    for at, key, offset, dtype, shape, stride in entry["layout"]
                ]
                path = self._path(index, "state")
                files.state = _Mapped(path, path.stat().st_size)
            self._roll_back(files)
        rest: dict[str, Any] = torch.load(
            self._folder / f"rest-{self.step % 2}.pt", map_location="cpu", weights_only=True
        )
        if rest["step"] != self.step:
            raise OffloadError(
                f"NVMe folder {self._folder} is damaged: rest-{self.step % 2}.pt is of step {rest['step']}"
            )
        return rest

    def states(self, layer: Layer) -> dict[int, dict[str, Tensor]]:
        """The optimizer's state of a layer, in its file."""
        files = self._files[layer.index]
        found: dict[int, dict[str, Tensor]] = {}
        for at, key, piece in files.layout or ():
            assert files.state is not None
            found.setdefault(at, {})[key] = piece.alone(files.state.slab)
        return found

    def _roll_back(self, files: _LayerFiles) -> None:
        path = self._path(files.layer.index, "undo")
        if not path.exists() or path.stat().st_size < _HEADER_BYTES:
            return
        content = path.read_bytes()
        magic, step, length, check = _HEADER.unpack_from(content)
        body = memoryview(content)[_HEADER_BYTES : _HEADER_BYTES + length]
        if magic != _MAGIC or step != self.step + 1 or len(body) != length or zlib.crc32(body) != check:
            return
        start = 0
        for part in (files.weights, files.state):
            if part is not None and start < length:
                part._map[: part.size_bytes] = body[start : start + part.size_bytes]
                start += part.size_bytes
                part.make_durable()

    # ---- files -----------------------------------------------------------------------------------------------------

    def _path(self, index: int, kind: str) -> Path:
        return self._folder / f"layer-{index:05d}.{kind}"

    def _committed(self) -> int:
        try:
            return int((self._folder / "step").read_text())
        except FileNotFoundError:
            return -1
        except (OSError, ValueError) as error:
            raise OffloadError(
                f"NVMe folder {self._folder} is damaged: its file step cannot be read; empty it"
            ) from error

    def _read_manifest(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self._folder / "manifest.json").read_bytes())
        except (OSError, ValueError) as error:
            raise OffloadError(f"NVMe folder {self._folder} is damaged: no manifest.json; empty it") from error
        for what, mine in self._who.items():
            if found.get(what) != mine:
                raise OffloadError(
                    f"NVMe folder {self._folder} holds a training with another {what} ({found.get(what)!r:.60}, this "
                    f"one has {mine!r}); empty it or give another folder"
                )
        return found

    def _replace(self, name: str, write: Callable[[_Outgoing], object]) -> None:
        """Atomically: the old file or the new one, whole and durable."""
        path, fresh = self._folder / name, self._folder / f"{name}.new"
        size = 0
        try:
            self.point(f"{name} written")
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                file = _Outgoing(fd)
                write(file)
                size = file.size_bytes
                file.end()
            finally:
                os.close(fd)
            self.point(f"{name} replaced")
            fresh.replace(path)
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise _refused(path, size, error) from error

    def close(self) -> None:
        """Let another process use the folder."""
        self._let_go()


def _write(path: Path, fd: int, content: memoryview, offset: int) -> None:
    """:raises OffloadError: the disk does not take all of it."""
    try:
        while content:
            written = os.pwrite(fd, content, offset)
            content, offset = content[written:], offset + written
    except OSError as error:
        raise _refused(path, len(content), error) from error


def _refused(path: Path, size_bytes: int, error: OSError) -> OffloadError:
    why = (error.strerror or str(error)).lower()
    need = f" of {size_bytes / 2**20:.1f} MiB" if size_bytes else ""
    return OffloadError(f"Cannot write {path}{need}: {why}; give an NVMe folder that is writable and large enough")
