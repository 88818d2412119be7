"""Waits for what has to happen: for as long as a busy machine may need, and no longer than it takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 90.0


def wait_for(what: Callable[[], Any], why: str = "it to happen", *, timeout_s: float = PATIENCE_S) -> Any:
    """The first true answer of `what`, asked again and again; what takes long to answer is asked less often."""
    asked = time.monotonic()
    deadline = asked + timeout_s
    while not (found := what()):
        now = time.monotonic()
        assert now < deadline, f"waited {timeout_s:g} s in vain for {why}"
        time.sleep(min(max(0.02, 19 * (now - asked)), 0.2))
        asked = time.monotonic()
    return found
