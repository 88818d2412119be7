"""What the long-running parts write is for their own user only, whoever made the home before."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def keep_files_private() -> None:
    """Have all files and folders that this process makes be nobody else's: 0600 and 0700."""
    os.umask(0o077)


def make_private(path: Path) -> None:
    """Take a file from before away from others, where it is this user's."""
    with suppress(OSError):
        if path.stat().st_uid == os.geteuid():
            path.chmod(path.stat().st_mode & 0o700)
