"""What a job's offload runtime reports of its plan and its steps; see tightship_offload.runtime.run_report."""

from __future__ import annotations

import json
from pathlib import Path

from tightship_collectors.jobs.small_file import small_text

FILE = "offload.json"
MAX_BYTES = 64 * 1024


def read_offload(run_dir: Path) -> dict[str, int]:
    """The figures in a run directory; empty where there are none, or they are not of the form agreed on."""
    try:
        content = json.loads(small_text(run_dir / FILE, MAX_BYTES, follow=False))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(content, dict) or not all(type(value) is int for value in content.values()):
        return {}
    return content
