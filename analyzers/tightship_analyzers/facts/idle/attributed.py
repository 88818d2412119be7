"""Time of which every nanosecond has one cause and one place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tightship_analyzers.facts.activity.cause import Cause
from tightship_analyzers.trace.columns import Int8s, Int32s, Int64s
from tightship_analyzers.trace.intervals import Intervals
from tightship_platform.results.analysis.figures import CausedTime


class Place(NamedTuple):
    """Where in the program, as far as the trace carries it; what it does not carry is empty."""

    frame: str
    """Innermost own function: `train.py:12 (main)`."""
    operator: str
    """Innermost operator, runtime call or annotated range; `before aten::mm` between two operators."""
    module: str
    """Path of the `nn.Module`s: `DataParallel_0.ResNet_0.Conv2d_3`."""

    def __str__(self) -> str:
        """The most telling part: the frame, else the module, else the operator; may be empty."""
        return self.frame or self.module or self.operator


NOWHERE = Place("", "", "")


class CauseRow(NamedTuple):
    """How much time one cause took at one place."""

    cause: Cause
    place: Place
    ns: int


@dataclass(frozen=True, slots=True, eq=False)
class Attributed:
    """Disjoint pieces of time by start; pieces that touch differ in cause or place."""

    start_ns: Int64s
    end_ns: Int64s
    cause: Int8s
    """(pieces,) a `Cause`."""
    place: Int32s
    """(pieces,) row in `places`."""
    places: tuple[Place, ...]

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def measure_ns(self) -> int:
        """All of it; the sum of `by_cause()` and of all rows, exactly."""
        return int((self.end_ns - self.start_ns).sum())

    def by_cause(self) -> dict[Cause, int]:
        """Cause → ns, the largest first; causes without time are left out."""
        totals = np.zeros(len(Cause), dtype=np.int64)
        np.add.at(totals, self.cause, self.end_ns - self.start_ns)
        found = [(cause, int(totals[cause])) for cause in Cause if totals[cause]]
        return dict(sorted(found, key=lambda item: -item[1]))

    def spans(self, *causes: Cause) -> Intervals:
        """When these causes hold; without arguments all of the time."""
        if not causes:
            return Intervals.of(self.start_ns, self.end_ns)
        rows = np.isin(self.cause, causes)
        return Intervals.of(self.start_ns[rows], self.end_ns[rows])

    def within(self, time: Intervals) -> Attributed:
        """The part that lies in `time`."""
        part = time & Intervals(self.start_ns, self.end_ns)
        row = np.searchsorted(self.start_ns, part.start_ns, side="right") - 1
        return Attributed(part.start_ns, part.end_ns, self.cause[row], self.place[row], self.places)

    def rows(self) -> list[CauseRow]:
        """What each cause took at each place, the largest first; sums to `measure_ns` exactly."""
        key = self.cause.astype(np.int64) * max(1, len(self.places)) + self.place
        known, inverse = np.unique(key, return_inverse=True)
        totals = np.zeros(len(known), dtype=np.int64)
        np.add.at(totals, inverse, self.end_ns - self.start_ns)
        order = np.argsort(-totals, kind="stable")
        return [
            CauseRow(Cause(cause), self.places[place], ns)
            for cause, place, ns in zip(
                (known[order] // max(1, len(self.places))).tolist(),
                (known[order] % max(1, len(self.places))).tolist(),
                totals[order].tolist(),
                strict=True,
            )
        ]

    def as_rows(self, most: int | None = None) -> list[CausedTime]:
        """For JSON, the largest first: one row for each cause and `place` (see `Place.__str__`; null: unknown), with
        the operator and the module where most of it was spent. They sum to `measure_ns` exactly.

        :param most: rows of a cause; what is beyond is one more row of it, whose place is null.
        """
        groups: dict[tuple[Cause, str], tuple[Place, int]] = {}
        for row in self.rows():
            place, ns = groups.get((row.cause, str(row.place)), (row.place, 0))
            groups[row.cause, str(row.place)] = place, ns + row.ns
        ranked = sorted(groups.items(), key=lambda group: -group[1][1])
        if most is not None:
            ranked = _cut(ranked, most)
        return [
            CausedTime(
                cause=cause.word,
                place=text or None,
                frame=place.frame or None,
                operator=place.operator or None,
                module=place.module or None,
                ns=ns,
            )
            for (cause, text), (place, ns) in ranked
        ]


Group = tuple[tuple[Cause, str], tuple[Place, int]]


def _cut(ranked: list[Group], most: int) -> list[Group]:
    """The first ones of each cause, and what is beyond them as one group without a place."""
    kept: dict[tuple[Cause, str], tuple[Place, int]] = {}
    seen: dict[Cause, int] = {}
    for (cause, text), (place, ns) in ranked:
        seen[cause] = seen.get(cause, 0) + 1
        if seen[cause] <= most and text:
            kept[cause, text] = place, ns
        else:
            kept[cause, ""] = NOWHERE, kept.get((cause, ""), (NOWHERE, 0))[1] + ns
    return sorted(kept.items(), key=lambda group: -group[1][1])


class Piece(NamedTuple):
    """Equally long columns of one part of an `Attributed` in the making."""

    start_ns: Int64s
    end_ns: Int64s
    cause: Int8s
    place: Int32s


def joined(pieces: Iterable[Piece], places: tuple[Place, ...]) -> Attributed:
    """Disjoint pieces in order of start, neighbours of one cause and place merged."""
    given = [piece for piece in pieces if len(piece.start_ns)]
    if not given:
        empty = np.array([], dtype=np.int64)
        return Attributed(empty, empty, empty.astype(np.int8), empty.astype(np.int32), places)
    start, end, cause, place = (np.concatenate(columns) for columns in zip(*given, strict=True))
    order = np.argsort(start, kind="stable")
    start, end, cause, place = start[order], end[order], cause[order], place[order]
    differs = (end[:-1] != start[1:]) | (cause[:-1] != cause[1:]) | (place[:-1] != place[1:])
    first = np.flatnonzero(np.append(True, differs))
    last = np.append(first[1:] - 1, len(start) - 1)
    return Attributed(start[first], end[last], cause[first], place[first], places)
