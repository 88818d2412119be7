"""Folders for a moment's work, which do not outlast a process that was killed over it.

[Note: whose scratch it is]
Whoever works in a folder holds a lock on it, which the kernel takes away with the process. A folder without its lock is
nobody's, and the next one who makes one, or a worker that starts, removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "tightship-scratch-"
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder of this process's own (0700) among the system's temporary ones, removed at the end.

    :raises OSError: it cannot be made.
    """
    remove_abandoned()
    path, lock = _made()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def remove_abandoned() -> int:
    """Remove this user's folders whose process was killed; how many there were."""
    removed = 0
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX):
                with contextlib.suppress(OSError):
                    removed += _remove(Path(entry.path))
    return removed


def _made() -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            lock = _locked(path)
            if lock is not None:
                return path, lock
        # Somebody took it for abandoned in the moment before it was locked.


def _remove(path: Path) -> bool:
    lock = _locked(path)
    if lock is None:
        return False
    try:
        shutil.rmtree(path)
    finally:
        os.close(lock)
    return True


def _locked(path: Path) -> int | None:
    """The locked folder; None: it is gone by now, or another user's.

    :raises OSError: there is none, it is a link, or somebody works in it.
    """
    fd = os.open(path, _FLAGS)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(fd)
        is_there = os.path.lexists(path) and os.path.samestat(status, os.lstat(path))
        if is_there and status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == 0o700:
            return fd
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None
