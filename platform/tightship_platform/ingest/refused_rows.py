"""Rows of a batch that cannot be: left out and counted, so that they cost none of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from tightship_platform.errors import Invalid

Row = TypeVar("Row")
Checked = TypeVar("Checked")


@dataclass(kw_only=True)
class RefusedRows:
    """Rows that were left out."""

    count: int = 0
    reason: str | None = None
    """What is wrong with the first of them."""

    def add(self, reason: str) -> None:
        """Count a row."""
        self.count += 1
        self.reason = self.reason or reason

    def without(self, rows: Iterable[Row], check: Callable[[Row], Checked]) -> list[Checked]:
        """What `check` makes of the rows, without those for which it raises `Invalid`."""
        kept = []
        for row in rows:
            try:
                kept.append(check(row))
            except Invalid as error:
                self.add(str(error))
        return kept
