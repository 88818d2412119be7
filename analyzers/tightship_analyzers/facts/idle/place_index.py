"""Places as numbers while they are looked up, and the book that turns them into words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from tightship_analyzers.facts.idle.attributed import Place
from tightship_analyzers.facts.program.frames import place_of
from tightship_analyzers.trace.columns import Int32s, Int64s
from tightship_analyzers.trace.model import Names
from tightship_analyzers.trace.open_rows import OpenRows
from tightship_platform.text import shown

MODULE = "nn.Module: "
MAX_PATH = 200
NONE = np.int32(-1)


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Places in numbers, one per moment; -1: unknown."""

    frame: Int32s
    """Name of the innermost own function."""
    operator: Int32s
    """Name of the innermost operator or annotated range, else of the runtime call."""
    module: Int32s
    """Number of the module path in `ModulePaths.texts`."""

    def or_else(self, other: Labels) -> Labels:
        """What is unknown here, from there."""
        return Labels(
            np.where(self.frame < 0, other.frame, self.frame),
            np.where(self.operator < 0, other.operator, self.operator),
            np.where(self.module < 0, other.module, self.module),
        )

    def put(self, rows: Int64s, other: Labels) -> None:
        """Sets these rows."""
        self.frame[rows], self.operator[rows], self.module[rows] = other.frame, other.operator, other.module

    @classmethod
    def unknown(cls, count: int) -> Self:
        """Nothing is known of any."""
        return cls(np.full(count, NONE), np.full(count, NONE), np.full(count, NONE))


class ModulePaths:
    """Numbers the chains of modules that were ever open around one another."""

    def __init__(self, names: Names) -> None:
        self.texts: list[str] = []
        self._names = names
        self._known: dict[tuple[int, int], int] = {}

    def of(self, name_of: Int32s, open_rows: OpenRows) -> Int32s:
        """(calls,) the path that ends with each module call."""
        path = np.empty(len(name_of), dtype=np.int32)
        for row, (name, parent) in enumerate(zip(name_of.tolist(), open_rows.parent.tolist(), strict=True)):
            key = (int(path[parent]) if parent >= 0 else -1, name)
            if key not in self._known:
                module = shown(self._names[name].removeprefix(MODULE))
                text = f"{self.texts[key[0]]}.{module}" if parent >= 0 else module
                self._known[key] = len(self.texts)
                self.texts.append(text if len(text) <= MAX_PATH else "…" + text[1 - MAX_PATH :])
            path[row] = self._known[key]
        return path


class PlaceIndex:
    """Numbers the distinct places of a trace."""

    def __init__(self, names: Names) -> None:
        self.paths = ModulePaths(names)
        self._names = names
        self._numbers: dict[Place, int] = {}

    @property
    def places(self) -> tuple[Place, ...]:
        """By number."""
        return tuple(self._numbers)

    def numbers(self, labels: Labels, before: Int32s) -> Int32s:
        """(moments,) the number of each place. Different names may look the same once they are cut to what is shown.

        :param before: (moments,) name of the operator that came next, for those without an operator; -1: none.
        """
        next_op = np.where(before >= 0, before.astype(np.int64) * 2 + 1, -1)
        operator = np.where(labels.operator >= 0, labels.operator.astype(np.int64) * 2, next_op)
        columns = labels.frame.astype(np.int64), operator, labels.module.astype(np.int64)
        code = np.zeros(len(before), dtype=np.int64)
        for column in columns:
            _, part = np.unique(column, return_inverse=True)
            _, code = np.unique(code * (int(part.max(initial=0)) + 1) + part, return_inverse=True)
        _, first = np.unique(code, return_index=True)
        known = zip(*(column[first].tolist() for column in columns), strict=True)
        return np.array([self._number(*parts) for parts in known], dtype=np.int32)[code]

    def _number(self, frame: int, operator: int, module: int) -> int:
        place = Place(
            place_of(self._names[frame]) if frame >= 0 else "",
            "" if operator < 0 else ("before " if operator % 2 else "") + shown(self._names[operator // 2]),
            self.paths.texts[module] if module >= 0 else "",
        )
        return self._numbers.setdefault(place, len(self._numbers))
