"""Interned text: every distinct name of a trace is stored once, columns hold its number."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from tightship_analyzers.trace.columns import Bools, Int32s

_CONTROLS = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd")
_CONTROLS |= dict.fromkeys((0x09, 0x0A, 0x0D, 0x2028, 0x2029), " ")


def clean(text: str, limit: int) -> str:
    """Text from outside without what would control a terminal or a page: one line of at most `limit` characters."""
    text = text[:limit]
    return text if text.isprintable() else text.translate(_CONTROLS)


def matcher(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    """Does a whole name fit the pattern?"""
    return lambda name: pattern.fullmatch(name) is not None


class Names:
    """The distinct names of one trace; `names[i]` is the text of name number i (0-based)."""

    __slots__ = ("_ids", "_texts")

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = list(texts)
        self._ids: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __getitem__(self, number: int) -> str:
        return self._texts[number]

    def id(self, text: str) -> int:
        """The number of exactly this text; -1 where the trace has no such name."""
        if self._ids is None:
            self._ids = {known: number for number, known in enumerate(self._texts)}
        return self._ids.get(text, -1)

    def ids(self, predicate: Callable[[str], bool]) -> Int32s:
        """The numbers of the names that satisfy `predicate`, ascending. It is called once per distinct name."""
        return np.array([n for n, text in enumerate(self._texts) if predicate(text)], dtype=np.int32)

    def mask(self, column: Int32s, predicate: Callable[[str], bool]) -> Bools:
        """For each row of a name column: does its name satisfy `predicate`? Called once per distinct name in it."""
        # A negative number means "no name": the extra last cell answers for it.
        used = np.zeros(len(self._texts) + 1, dtype=np.bool_)
        used[column] = True
        used[-1] = False
        for number in np.flatnonzero(used).tolist():
            used[number] = predicate(self._texts[number])
        return used[column]
