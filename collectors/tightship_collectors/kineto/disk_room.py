"""Room on a disk that captures leave free: nobody must meet a full disk because of us."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

MIN_FREE_BYTES = 500_000_000


class NoRoom(OSError):
    """A disk is nearly full; `strerror` says which."""


def require_room(place: int | Path, shown: Path) -> None:
    """Pass while at least MIN_FREE_BYTES are free on the disk of a folder or of an open file.

    :param shown: what messages call it.
    :raises NoRoom: fewer are.
    """
    free = shutil.disk_usage(place).free
    if free < MIN_FREE_BYTES:
        least = MIN_FREE_BYTES // 1_000_000
        raise NoRoom(errno.ENOSPC, f"only {free // 1_000_000} MB are free in {shown}, {least} are needed")
