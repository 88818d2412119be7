"""Folders of jobs' users, and what an agent that is root does in them.

[Note: in a user's folder]
Whoever owns a folder can put another thing under any name in it, between any two calls of ours. So the agent opens the
folder itself, follows no link, looks at what it has opened (a folder of that user, which nobody else may write to), and
reaches everything below through that handle. Only a socket has to be bound by its whole path: libkineto compares the
name from which an answer comes. It is bound with the rights of the user alone (`acting_as`), so that a folder that was
swapped for a link leads to nothing but what that user could have done there.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Of everything opened below: no link, no wait for the other end of a pipe, no terminal that becomes the agent's."""
_NO_GROUP = 65534
_SETGROUPS = {"x86_64": 116, "aarch64": 159}
"""Numbers of the system call, which is one thread's; the C library's function is the whole process's."""


@contextlib.contextmanager
def user_folder(path: Path, uid: int, below: str = "") -> Iterator[int]:
    """A handle of a folder of `uid`, to be used as `dir_fd`.

    :param below: the name of a folder in it, which is opened instead.
    :raises OSError: it is gone, a link, of another user, or others may write to it.
    """
    fd = os.open(path, FOLDER_FLAGS)
    try:
        _check(fd, path, uid)
        if below:
            outer, fd = fd, os.open(below, FOLDER_FLAGS, dir_fd=fd)
            os.close(outer)
            _check(fd, path / below, uid)
        yield fd
    finally:
        os.close(fd)


def _check(fd: int, path: Path, uid: int) -> None:
    status = os.fstat(fd)
    if status.st_uid != uid:
        raise PermissionError(errno.EPERM, f"it belongs to user {status.st_uid}, not to user {uid}", str(path))
    if status.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "others may write to it", str(path))


@contextlib.contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """Within it, this thread has the rights to files that `uid` has alone, without any group's.

    :raises PermissionError: this process may not act for others.
    """
    if uid == os.geteuid():
        yield
        return
    import ctypes  # slow to import, and only the agent of many users needs it

    libc, unchanged = ctypes.CDLL(None, use_errno=True), ctypes.c_uint(-1)
    groups = os.getgroups()
    try:
        _set_groups(libc, [])
        libc.setfsgid(_NO_GROUP)
        libc.setfsuid(ctypes.c_uint(uid))
        # Neither tells whether it did anything but by what the next call finds.
        if libc.setfsuid(unchanged) & 0xFFFFFFFF != uid or libc.setfsgid(unchanged) != _NO_GROUP:
            raise PermissionError(errno.EPERM, f"this process may not act for user {uid}")
        yield
    finally:
        libc.setfsuid(ctypes.c_uint(os.geteuid()))
        libc.setfsgid(ctypes.c_uint(os.getegid()))
        _set_groups(libc, groups)


def _set_groups(libc: ctypes.CDLL, groups: list[int]) -> None:
    import ctypes

    number = _SETGROUPS.get(os.uname().machine)
    if number is not None and os.geteuid() == 0:
        given = (ctypes.c_uint * len(groups))(*groups)
        if libc.syscall(number, ctypes.c_size_t(len(groups)), given) != 0:
            raise PermissionError(ctypes.get_errno(), "this process may not give up its groups")
