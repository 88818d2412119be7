"""The reference data: recordings of real devices and published figures. They are no part of the repository.

`TIGHTSHIP_REFERENCE` names their folder. Tests that need it are marked `reference`, see conftest.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

GIVEN = os.environ.get("TIGHTSHIP_REFERENCE", "")
FOLDER = Path(GIVEN or os.devnull).absolute()
"""Without the variable a path below which nothing exists: what lists files at collection finds none."""
TRACES = FOLDER / "traces"
FIGURES = TRACES / "reference"
"""What HolisticTraceAnalysis says of the traces; below `exact`, what its definitions give in whole nanoseconds."""
STRAGGLERS = FOLDER / "stragglers"
HANGS = FOLDER / "hangs"
"""Dumps of flight recorders, with what was injected."""
FLEETS = FOLDER / "fleets"
"""Histories of two fleets."""


def trace_paths() -> list[Path]:
    """All traces."""
    return [path for path in sorted(TRACES.rglob("*.json*")) if not path.is_relative_to(FIGURES)]


def trace_id(path: Path) -> str:
    """A trace's path within the folder, to name a test."""
    return str(path.relative_to(TRACES))


def exact_figures() -> dict[str, Any]:
    """Trace, relative to the traces' folder → its exact figures; empty where the folder is not there."""
    path = FIGURES / "exact" / "temporal_overlap_idle.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def peer_figures() -> dict[str, Any]:
    """What HolisticTraceAnalysis printed, by the name of its file; empty where the folder is not there."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FIGURES.glob("*.json"))}
