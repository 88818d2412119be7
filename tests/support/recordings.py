"""What the tests of real recordings run on: the traces of hazard_traces.py and, marked `reference`, real ones."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from brute_force import BruteForce
from hazard_traces import HAZARDS
from reference_data import TRACES, exact_figures, trace_id, trace_paths

MADE = tuple(HAZARDS)


def real(path: Path) -> Any:
    """A reference trace as a parameter."""
    return pytest.param(path, marks=pytest.mark.reference, id=trace_id(path))


ANY = [*MADE, *map(real, trace_paths())]
"""For `@pytest.mark.parametrize("recording", ANY, indirect=True)`; a test gets the path of the file."""

_published = cache(exact_figures)


@cache
def brute_force(path: Path) -> BruteForce:
    return BruteForce(path)


def figures(path: Path) -> dict[str, Any]:
    """The exact figures: published ones where there are any, else those of the brute force."""
    known: dict[str, Any] | None = _published().get(trace_id(path)) if path.is_relative_to(TRACES) else None
    return known or brute_force(path).figures()
