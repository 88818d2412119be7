"""A token in a file that only its owner can read."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from tightship_platform.errors import Invalid

PREFIX = "ts_"
"""Begins every token that we make, so that scanners for leaked secrets can find it."""
_MOST = 1024


def new_token() -> str:
    """A token that nobody can guess: 256 bits."""
    return PREFIX + secrets.token_urlsafe(32)


def local_token_path(home: Path) -> Path:
    """Where the token of this machine's user lies; see [Note: one local user] in `api.auth`."""
    return home / "token"


def make_token(path: Path) -> str:
    """The token in the file, which is made with a new one where it is not there; of many who do so, one makes it.

    :raises Invalid: the file cannot be made, others can read the one that is there, or it holds no token.
    """
    return read_token(path) or _write(path, new_token(), replace=False) or read_token(path)


def write_token(path: Path, token: str) -> None:
    """Keep the token in the file, which is made with mode 0600, or replaced whole.

    :raises Invalid: the file cannot be written.
    """
    _write(path, token, replace=True)


def _write(path: Path, token: str, *, replace: bool) -> str:
    """The token, when the file holds it now; empty: there is another one, which stays."""
    draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "w", encoding="ascii") as file:
                file.write(f"{token}\n")
                file.flush()
                os.fsync(fd)
            return token if _put(draft, path, replace=replace) else ""
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise Invalid("Token file", str(path), f"a file that can be written ({error.strerror})") from error


def _put(draft: Path, path: Path, *, replace: bool) -> bool:
    if replace:
        draft.replace(path)
        return True
    try:
        os.link(draft, path)  # unlike a rename, it replaces nothing
    except FileExistsError:
        return False
    return True


def read_token(path: Path) -> str:
    """The token in the file; empty when there is none.

    :raises Invalid: others can read the file, or it holds no token.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise Invalid("Token file", str(path), f"a file that can be read ({error.strerror})") from error
    try:
        status = os.fstat(fd)
        mode = stat.S_IMODE(status.st_mode)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or mode & 0o077:
            expected = f"a file of user {os.geteuid()} with mode 600, not one of {status.st_uid} with {mode:o}"
            raise Invalid("Token file", str(path), expected)
        content = os.read(fd, _MOST + 1)
    finally:
        os.close(fd)
    token = content.decode("ascii", "replace").strip()
    if not token.isascii() or not token.isprintable() or " " in token or not 0 < len(token) <= _MOST:
        raise Invalid("Token file", str(path), "one token and nothing else")
    return token
