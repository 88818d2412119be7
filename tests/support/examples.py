"""How many examples a property test tries: all under `make explore`, else a quarter, which are the same every time."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

EXPLORE = os.environ.get("TIGHTSHIP_EXPLORE") == "1"
USUAL = 100


def tried(count: int) -> int:
    """Of that many."""
    return count if EXPLORE else max(5, count // 4)


def examples(count: int, **more: Any) -> settings:
    """Hypothesis's settings for a test that explores that many."""
    return settings(max_examples=tried(count), deadline=None, **more)
