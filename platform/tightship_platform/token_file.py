"""A token in a file that only its owner can read."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from tightship_platform.errors import Invalid

_MOST = 1024


def write_token(path: Path, token: str) -> None:
    """Keep the token in the file, which is made with mode 0600, or replaced whole.

    :raises Invalid: the file cannot be written.
    """
    draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "w", encoding="ascii") as file:
                file.write(f"{token}\n")
                file.flush()
                os.fsync(fd)
            draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise Invalid("Token file", str(path), f"a file that can be written ({error.strerror})") from error


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
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        mode = stat.S_IMODE(status.st_mode)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or mode & 0o077:
            expected = f"a file of user {os.geteuid()} with mode 600, not one of {status.st_uid} with {mode:o}"
            raise Invalid("Token file", str(path), expected)
        content = file.read(_MOST + 1)
    token = content.decode("ascii", "replace").strip()
    if not token.isascii() or not token.isprintable() or " " in token or not 0 < len(token) <= _MOST:
        raise Invalid("Token file", str(path), "one token and nothing else")
    return token
