"""Says, while a job runs, that it cannot be observed, and what to do about it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from tightship_collectors.jobs.control_file import FOLDER
from tightship_collectors.jobs.unarmed import UnarmedWatch

LOOKS_S = (3, 5, 10, 15, 30, 60, 120, 300)
"""Pauses before the looks; a job that has not imported torch by then is none that trains."""


def watch(root: int, run_dir: Path, warn: Callable[[str], None], over: threading.Event) -> None:
    """Warn once where a process below `root` computes with torch unobserved; end when one is observed, or at `over`."""
    found = UnarmedWatch()
    for pause_s in LOOKS_S:
        if over.wait(pause_s) or _is_observed(run_dir):
            return
        unarmed = found.look(_family(root), ())
        if unarmed is not None:
            warn(f"{unarmed.why}. Until then its steps are not counted, and no trace of it can be taken")
            return


def _is_observed(run_dir: Path) -> bool:
    try:
        return any((run_dir / FOLDER).iterdir())
    except OSError:
        return True  # the run is over


def _family(root: int) -> list[int]:
    import psutil

    try:
        return [root, *(child.pid for child in psutil.Process(root).children(recursive=True))]
    except psutil.Error:
        return []
