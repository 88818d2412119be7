"""Readings: what is true of a trace, as files; their form stands in README.md."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
UNITS = ("step", "recording")
BOUND_BY = ("gpu", "host", "input", "communication", "cpu", "unknown")
ANSWERS = ("bound", "first", "brings", "sure", "next")
LARGE_FRAC = 0.05
"""Share of the unit from which an item counts for recall."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """Something that costs time, and what mending it brings."""

    rule: str | None
    kind: str
    places: tuple[str, ...]
    low_ns: int
    high_ns: int
    true_of: str
    gives: str

    def is_large(self, unit_ns: int) -> bool:
        """It counts for recall."""
        return (self.low_ns + self.high_ns) / 2 >= LARGE_FRAC * unit_ns

    def names(self, text: str) -> bool:
        """One of its places stands in the text."""
        return not self.places or any(place.lower() in text.lower() for place in self.places)


@dataclass(frozen=True, kw_only=True)
class NotSaid:
    """A finding that would be false."""

    rule: str
    place: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One file of this folder."""

    name: str
    traces: tuple[str, ...]
    what: str
    unit: str
    unit_ns: int
    bound_by: str
    why: str
    recording: tuple[str, ...]
    items: tuple[Item, ...]
    not_said: tuple[NotSaid, ...]
    headline_not: tuple[str, ...]
    answers: dict[str, str]

    @property
    def script(self) -> Path:
        """Prints its figures."""
        return FOLDER / "scripts" / f"{self.name}.py"


def read_reading(path: Path) -> Reading:
    """One reading.

    :raises ValueError: it has not the form that README.md asks for.
    """
    given: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    try:
        made = Reading(
            name=path.stem,
            traces=tuple(given.pop("traces")),
            items=tuple(_item(row) for row in given.pop("items")),
            not_said=tuple(NotSaid(**row) for row in given.pop("not_said")),
            recording=tuple(given.pop("recording")),
            headline_not=tuple(given.pop("headline_not")),
            **given,
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path.name}: {error}") from error
    _check(made)
    return made


def read_all() -> list[Reading]:
    """All of the folder, by name."""
    return [read_reading(path) for path in sorted(FOLDER.glob("*.json"))]


def _item(row: dict[str, Any]) -> Item:
    low_ns, high_ns = row.pop("ns")
    return Item(places=tuple(row.pop("places")), low_ns=low_ns, high_ns=high_ns, **row)


def _check(reading: Reading) -> None:
    def expect(fine: bool, what: str) -> None:
        if not fine:
            raise ValueError(f"{reading.name}: {what}")

    expect(bool(reading.traces) and bool(reading.what), "it needs traces, and what they are")
    expect(reading.unit in UNITS, f"unit is {reading.unit!r}, none of {UNITS}")
    expect(isinstance(reading.unit_ns, int) and reading.unit_ns > 0, "unit_ns is no positive integer")
    expect(reading.bound_by in BOUND_BY, f"bound_by is {reading.bound_by!r}, none of {BOUND_BY}")
    expect(set(reading.answers) == set(ANSWERS), f"answers are not {ANSWERS}")
    for item in reading.items:
        ends = (item.low_ns, item.high_ns)
        fine = all(isinstance(end, int) for end in ends) and 0 <= ends[0] <= ends[1] <= reading.unit_ns
        expect(fine, f"{item.kind}: {ends} is no interval within the unit")
    for pattern in reading.headline_not:
        re.compile(pattern)
