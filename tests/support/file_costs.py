"""Processor time of each test file, its child processes included, where TIGHTSHIP_TEST_COSTS names a file to append to:

TIGHTSHIP_TEST_COSTS=costs.txt make test && sort -rn costs.txt | head -40
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest


def _used_s() -> float:
    """Of this process and its children that have ended, also of those that are another's (see warm_tightship)."""
    forks = sys.modules.get("warm_tightship")
    return sum(os.times()[:4]) + (forks.costs_s[0] if forks else 0.0)


class FileCosts:
    """Counts in one process. A child that nobody waits for is not counted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = _used_s()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid.partition("::")[0]] += _used_s() - before  # type: ignore[assignment]

    def pytest_sessionfinish(self) -> None:
        with self._path.open("a") as file:
            file.writelines(f"{seconds:8.1f} {name}\n" for name, seconds in self._seconds.items())
