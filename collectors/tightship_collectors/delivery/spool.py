"""The durable queue between sampling and the network: records wait here until the server has them.

[Note: what the spool promises]
Order: entries leave in the order in which they came, except those that the sender passes over. One file per entry,
written beside its place and renamed, with its length and checksum in the first line.
Survives `kill -9` of the agent: nothing that `put` returned from is lost. A power cut may take the last half minute,
because files are not fsynced one by one (a disk that is slow to sync must not slow sampling down, and the jobs that
were measured died of the same cut); what it leaves half-written fails its checksum and is set aside.
Bounded: above `max_bytes` the oldest entries go first, are counted, and this is said once.
Full disk: entries wait in memory, at most MEMORY_BYTES of them, and move to disk in order as soon as that works again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import zlib
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tightship_platform.units import now_ns

LOG = logging.getLogger(__name__)

DEFAULT_MAX_BYTES = 512 * 1024 * 1024
MEMORY_BYTES = 16 * 1024 * 1024
BLOCK = 4096
"""A small file takes a whole block: counted so, the bound holds for the disk and not only for the text."""
MAX_ENTRY_BYTES = 64 * 1024 * 1024
KEPT_ASIDE = 50
"""Entries that nobody could use are kept for a look, at most so many."""
KINDS = ("runs", "batches")


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One request body that waits."""

    kind: str
    """`runs` or `batches`: where it is posted to."""
    body: bytes
    name: str


class Spool:
    """A folder of entries. `put` may be called from one thread while another delivers.

    :raises OSError: from the constructor, when the folder cannot be made or read.
    """

    def __init__(self, folder: Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._queue_dir = folder / "queue"
        self._aside_dir = folder / "aside"
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._memory: deque[Entry] = deque()
        self._disk_full = False
        self._said_dropped = False
        self.dropped = 0
        """Entries given up because the spool was full."""
        for made in (self._queue_dir, self._aside_dir):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._files: deque[tuple[str, int]] = deque()
        for file in sorted(self._queue_dir.iterdir()):
            if file.suffix == ".new":
                file.unlink(missing_ok=True)
            elif file.name.partition(".")[2] in KINDS:
                self._files.append((file.name, _on_disk(file.stat().st_size)))
        self._bytes = sum(size for _, size in self._files)
        self._last = int(self._files[-1][0].partition(".")[0]) if self._files else 0

    def put(self, kind: str, body: bytes) -> None:
        """Queue one request body. Never raises for a disk that is full or broken."""
        with self._lock:
            self._last = max(self._last + 1, now_ns())
            self._memory.append(Entry(kind=kind, body=body, name=f"{self._last:020d}.{kind}"))
            self._to_disk()
            self._bound()

    def peek(self, skip: Collection[str] = (), *, since_ns: int = 0) -> Entry | None:
        """The oldest entry; None when there is none. It stays until `done` or `set_aside`.

        :param skip: names of entries that are passed over.
        :param since_ns: so are those that came before this time.
        """
        first = f"{max(0, since_ns):020d}"
        with self._lock:
            while (name := self._oldest(skip, first)) is not None:
                try:
                    return _read(self._queue_dir / name)
                except FileNotFoundError:
                    self._forget(name)
                except (OSError, ValueError) as error:
                    self._move_aside(name, str(error))
            return next((entry for entry in self._memory if entry.name >= first and entry.name not in skip), None)

    def done(self, entry: Entry) -> None:
        """The server has it."""
        with self._lock:
            if self._forget(entry.name):
                (self._queue_dir / entry.name).unlink(missing_ok=True)
            else:
                self._forget_in_memory(entry.name)

    def set_aside(self, entry: Entry, why: str) -> None:
        """Nobody will ever take this entry: keep it for a look, out of the way of the others."""
        with self._lock:
            if any(name == entry.name for name, _ in self._files):
                self._move_aside(entry.name, why)
            elif self._forget_in_memory(entry.name):
                LOG.warning("Spool entry %s is dropped: %s", entry.name, why)

    def refuse(self, place: Path, why: str) -> None:
        """Set a file aside that somebody else left beside the queue."""
        LOG.warning("%s is set aside in %s: %s", place, self._aside_dir, why)
        with self._lock:
            self._keep_aside(place)

    def backlog(self) -> tuple[int, int]:
        """(entries, bytes) that wait."""
        with self._lock:
            waiting = sum(len(entry.body) for entry in self._memory)
            return len(self._files) + len(self._memory), self._bytes + waiting

    # ---- under the lock ----------------------------------------------------------------------------------------------

    def _to_disk(self) -> None:
        """Move what waits in memory to disk, oldest first, as far as the disk lets us."""
        if self._disk_full:
            with contextlib.suppress(OSError):
                self._queue_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        while self._memory:
            entry = self._memory[0]
            try:
                size = _write(self._queue_dir / entry.name, entry)
            except OSError as error:
                if not self._disk_full:
                    self._disk_full = True
                    LOG.warning("Cannot write to the spool %s (%s): records wait in memory", self._queue_dir, error)
                return
            self._memory.popleft()
            self._files.append((entry.name, size))
            self._bytes += size
        if self._disk_full:
            self._disk_full = False
            LOG.warning("The spool %s can be written again", self._queue_dir)

    def _bound(self) -> None:
        before = self.dropped
        while self._bytes > self._max_bytes and len(self._files) > 1:
            name = self._files[0][0]
            self._forget(name)
            (self._queue_dir / name).unlink(missing_ok=True)
            self.dropped += 1
        waiting = sum(len(entry.body) for entry in self._memory)
        while waiting > MEMORY_BYTES and len(self._memory) > 1:
            waiting -= len(self._memory.popleft().body)
            self.dropped += 1
        if self.dropped > before and not self._said_dropped:
            self._said_dropped = True
            LOG.warning("The spool %s is full: the oldest records are dropped", self._queue_dir)

    def _oldest(self, skip: Collection[str], first: str) -> str | None:
        if not self._files or self._files[0][0] >= first:
            return next((name for name, _ in self._files if name not in skip), None)
        found = None
        for name, _ in reversed(self._files):  # what came lately stands at the end of a long row
            if name < first:
                break
            found = found if name in skip else name
        return found

    def _forget(self, name: str) -> bool:
        for place, (known, size) in enumerate(self._files):
            if known == name:
                del self._files[place]
                self._bytes -= size
                return True
        return False

    def _forget_in_memory(self, name: str) -> bool:
        for entry in self._memory:
            if entry.name == name:
                self._memory.remove(entry)
                return True
        return False

    def _move_aside(self, name: str, why: str) -> None:
        LOG.warning("Spool entry %s is set aside in %s: %s", name, self._aside_dir, why)
        self._forget(name)
        self._keep_aside(self._queue_dir / name)

    def _keep_aside(self, place: Path) -> None:
        try:
            place.replace(self._aside_dir / place.name)
            for old in sorted(self._aside_dir.iterdir(), key=lambda kept: kept.stat().st_mtime)[:-KEPT_ASIDE]:
                old.unlink(missing_ok=True)
        except OSError as error:
            LOG.warning("Cannot set %s aside, it is deleted: %s", place, error)
            place.unlink(missing_ok=True)


def _write(place: Path, entry: Entry) -> int:
    """Write one file whole or not at all; returns its size on disk in bytes."""
    head = f"tightship 1 {len(entry.body)} {zlib.crc32(entry.body):08x}\n".encode()
    draft = place.with_name(place.name + ".new")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(head)
            file.write(entry.body)
        draft.replace(place)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    return _on_disk(len(head) + len(entry.body))


def _read(place: Path) -> Entry:
    """
    :raises ValueError: the file is not what was written.
    """
    with place.open("rb") as file:
        head = file.readline(100).split()
        body = file.read(MAX_ENTRY_BYTES + 1)
    if len(head) != 4 or head[:2] != [b"tightship", b"1"]:
        raise ValueError("it is not a spool entry")
    if head[2] != str(len(body)).encode() or head[3] != f"{zlib.crc32(body):08x}".encode():
        raise ValueError("it is cut off or damaged")
    return Entry(kind=place.name.partition(".")[2], body=body, name=place.name)


def _on_disk(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
