"""What a job's offload runtime reports of its plan and its steps; see tightship_offload.runtime.run_report."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

FILE = "offload.json"
MAX_BYTES = 64 * 1024


def read_offload(run_dir: Path) -> dict[str, int]:
    """The figures in a run directory; empty where there are none, or they are not of the form agreed on."""
    try:
        fd = os.open(run_dir / FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
                return {}
            content = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict) or not all(type(value) is int for value in content.values()):
        return {}
    return content
