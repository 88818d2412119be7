"""A sign of life that a part without a port leaves on disk, and the file lock that keeps a part single."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import IO

from tightship_platform.errors import Conflict, Invalid

FRESH_S = 30.0
"""A sign of life older than this means that the part hangs or is gone."""


def _file(home: Path, part: str) -> Path:
    return home / "liveness" / part


def report_alive(home: Path, part: str) -> None:
    """Say that `part` is alive now."""
    file = _file(home, part)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.touch()


def liveness_age_s(home: Path, part: str) -> float | None:
    """Seconds since `part` last said that it is alive; null when it never did."""
    alive_s = last_alive_s(home, part)
    return None if alive_s is None else max(0.0, time.time() - alive_s)


def last_alive_s(home: Path, part: str) -> float | None:
    """When `part` last said that it is alive, in seconds since 1970; null when it never did."""
    try:
        return _file(home, part).stat().st_mtime
    except FileNotFoundError:
        return None


def hold_lock(home: Path, part: str, hint: str) -> IO[str]:
    """Be the only `part` of this home for as long as the returned file stays open.

    :raises Conflict: another process is; the line names its pid.
    :raises Invalid: the home cannot be written.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = (home / f"{part}.lock").open("a+", encoding="ascii")
    except OSError as error:
        raise Invalid("TIGHTSHIP_HOME", str(home), f"a folder that can be written ({error.strerror})") from error
    try:
        # A record lock, not flock: children that are forked later do not inherit it, so it ends with this process.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        pid = file.read(20).strip()
        file.close()
        who = f" (pid {pid})" if pid.isdigit() else ""
        raise Conflict(f"`tightship {part}` already runs in {home}{who}; {hint}") from error
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file
