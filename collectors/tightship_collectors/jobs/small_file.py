"""Reads files of a known small size that anything may lie in place of: a pipe, a device, something endless."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def small_text(path: Path, most: int, *, whole: bool = True, follow: bool = True) -> str:
    """What is in a file; empty where there is none, or no plain one, or where it is larger and wanted `whole`.

    :param most: bytes that are read at most.
    :param follow: a link to a file will do.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return ""
            content = file.read(most + 1)
    except (OSError, ValueError):
        return ""
    return "" if whole and len(content) > most else content[:most].decode("utf-8", "replace")
