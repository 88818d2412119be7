"""Codes that a browser exchanges for the cookie of this machine's user; see [Note: one local user] in `api.auth`."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from tightship_platform.errors import Invalid
from tightship_platform.units import NS_PER_S

CODE_S = 300
"""How long a code can be exchanged for a cookie."""
_CODE = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def login_link(server: str, home: Path) -> str:
    """An address at which a browser is logged in, once, at the server of this home.

    :raises Invalid: the home cannot be written.
    """
    return f"{server}/login?code={make_code(home)}"


def make_code(home: Path) -> str:
    """A code that `take_code` accepts once, for CODE_S.

    :raises Invalid: the home cannot be written.
    """
    folder, code = home / "login", secrets.token_urlsafe(32)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _own_folder(folder) as fd:
            _remove_old(fd)
            file = os.open(_name(code), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=fd)
            with os.fdopen(file, "w", encoding="ascii") as out:
                out.write(str(_now_ns()))
    except OSError as error:
        raise Invalid("Folder of login codes", str(folder), f"a folder of your own ({error.strerror})") from error
    return code


def take_code(home: Path, code: str) -> bool:
    """Whether the code was made less than CODE_S ago and nobody has taken it; nobody can from now on."""
    if not _CODE.fullmatch(code):
        return False
    try:
        with _own_folder(home / "login") as fd:
            made_ns = _made_ns(fd, _name(code))
            os.unlink(_name(code), dir_fd=fd)  # of many who come at once, one does it
    except (OSError, ValueError):
        return False
    return 0 <= _now_ns() - made_ns < CODE_S * NS_PER_S


def _now_ns() -> int:
    """A clock that nobody sets, the same for all processes of this machine."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _name(code: str) -> str:
    return hashlib.sha256(code.encode("ascii")).hexdigest()


@contextlib.contextmanager
def _own_folder(path: Path) -> Iterator[int]:
    """A handle of a folder into which nobody else can put anything."""
    fd = os.open(path, _FOLDER_FLAGS)
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
            raise PermissionError(1, f"it is user {status.st_uid}'s, with mode {stat.S_IMODE(status.st_mode):o}")
        yield fd
    finally:
        os.close(fd)


def _made_ns(folder: int, name: str) -> int:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(fd, "rb") as file:
        return int(file.read(20))


def _remove_old(folder: int) -> None:
    for name in os.listdir(folder):
        with contextlib.suppress(OSError, ValueError):
            if not 0 <= _now_ns() - _made_ns(folder, name) < CODE_S * NS_PER_S:
                os.unlink(name, dir_fd=folder)
