"""What each test file costs, and which of the costly ones a run of everything takes.

file_costs.txt holds seconds of processor time per file, made by

    TIGHTSHIP_TEST_COSTS=costs.txt make explore ROUNDS=0 && sort -rn costs.txt > tests/support/file_costs.txt
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator, Mapping
from pathlib import Path

import psutil
import pytest

FILE = Path(__file__).with_suffix(".txt")
COSTLY_S = 5.0
BUDGET_S = 180.0
"""Costly files are drawn until they come to this."""
NEVER_LEFT_OUT = ("tests/contracts/", "tests/platform/api/", "tests/test_")
"""What alone shows that no data are lost, or that nobody gets in; and what reads the whole tree."""


def known() -> dict[str, float]:
    """File → seconds. A file that is not in it costs little."""
    lines = FILE.read_text(encoding="utf-8").splitlines() if FILE.exists() else []
    return {name: float(seconds) for seconds, name in map(str.split, lines)}


def left_out(costs: Mapping[str, float], number: str) -> set[str]:
    """The costly files that the number does not draw: each of them is drawn by others."""
    costly = [name for name, seconds in sorted(costs.items()) if seconds >= COSTLY_S]
    costly = [name for name in costly if not name.startswith(NEVER_LEFT_OUT)]
    random.Random(f"{number} files").shuffle(costly)
    left, spent = set(), 0.0
    for name in costly:
        if spent and spent + costs[name] > BUDGET_S:
            left.add(name)
        else:
            spent += costs[name]
    return left


class FileCosts:
    """Counts in one process: its own time and that of all processes below it, whether they have ended or not."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: Counter[str] = Counter()
        self._me = psutil.Process()

    def _used_s(self) -> float:
        used = sum(self._me.cpu_times()[:4])
        for child in self._me.children(recursive=True):
            try:
                used += sum(child.cpu_times()[:4])
            except psutil.Error:  # it has just ended
                continue
        return float(used)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = self._used_s()
        try:
            return (yield)
        finally:
            # Below 0 where what has ended was nobody's child any more.
            self._seconds[item.nodeid.partition("::")[0]] += max(0.0, self._used_s() - before)  # type: ignore[assignment]

    def pytest_sessionfinish(self) -> None:
        with self._path.open("a") as file:
            file.writelines(f"{seconds:8.1f} {name}\n" for name, seconds in self._seconds.items())
