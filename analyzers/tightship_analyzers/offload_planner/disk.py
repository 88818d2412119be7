"""The folder in which layers are to be: how much room it has, and how fast it is written and read."""

from __future__ import annotations

import mmap
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from tightship_analyzers.offload_planner.constraints import Disk
from tightship_platform.errors import TightshipError
from tightship_platform.units import format_bytes

MEASURED_BYTES = 64 * 2**20
"""Written, and read back."""
BLOCK_BYTES = 2**20
IN_MEMORY = ("tmpfs", "ramfs")
"""File systems whose files are in the memory that is to be spared."""


class CannotUse(TightshipError):
    """Layers cannot be in this folder."""


def open_disk(path: Path, root: Path = Path("/")) -> Disk:
    """The folder, made where it is not there yet.

    :raises CannotUse: it cannot be written, or is in memory itself.
    """
    folder = path.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        room = os.statvfs(folder)
        folder = folder.resolve()
    except OSError as error:
        raise CannotUse(
            f"--nvme {str(path)!r} cannot be used: {error.strerror or error}; give another folder"
        ) from None
    kind = file_system_of(folder, root)
    if kind in IN_MEMORY:
        raise CannotUse(f"--nvme {str(path)!r} is on a {kind}, which is in memory; give a folder on a disk")
    return Disk(folder=str(folder), free_bytes=room.f_bavail * room.f_frsize)


def file_system_of(folder: Path, root: Path = Path("/")) -> str:
    """Kind of the file system that holds a folder; empty where it is not known."""
    try:
        lines = (root / "proc" / "self" / "mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    found, length = "", -1
    for line in lines:
        fields, _, rest = line.partition(" - ")
        words, kind = fields.split(" "), rest.split(" ")[0]
        if len(words) < 5:
            continue
        place = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), words[4]))
        if folder.is_relative_to(place) and len(place.parts) >= length:  # of two on one place the later is on top
            found, length = kind, len(place.parts)
    return found


def disk_rates(disk: Disk) -> tuple[float, float]:
    """(read, write) in bytes per second, past the page cache where the file system allows that.

    :raises CannotUse: there is no room for the test, or it cannot be written.
    """
    path = Path(disk.folder) / f".rate-{os.getpid()}"
    size = min(MEASURED_BYTES, disk.free_bytes // 4 // BLOCK_BYTES * BLOCK_BYTES)
    if not size:
        raise CannotUse(f"{disk.folder} has {format_bytes(disk.free_bytes)} left; give another folder")
    block = mmap.mmap(-1, BLOCK_BYTES)  # aligned, as direct transfers need it
    block.write(os.urandom(BLOCK_BYTES))
    try:
        fd = _opened(path)
        try:
            written_s = _seconds(lambda at: os.pwritev(fd, [block], at), size, fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            read_s = _seconds(lambda at: os.preadv(fd, [block], at), size, fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise CannotUse(f"{disk.folder} cannot be written: {error.strerror or error}; give another folder") from None
    finally:
        path.unlink(missing_ok=True)
    return size / read_s, size / written_s


def _opened(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError:
        path.unlink(missing_ok=True)
        return os.open(path, flags, 0o600)


def _seconds(move: Callable[[int], int], size: int, fd: int) -> float:
    begin = time.perf_counter()
    for at in range(0, size, BLOCK_BYTES):
        move(at)
    os.fdatasync(fd)
    return max(time.perf_counter() - begin, 1e-6)
