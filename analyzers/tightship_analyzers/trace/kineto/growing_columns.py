"""What grows while a file is read: tables of distinct keys, and columns in pieces."""

from __future__ import annotations

import mmap
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np

Key = TypeVar("Key", bound=Hashable)


class Interned(dict[Key, int]):
    """Numbers distinct keys from 0; what comes beyond `limit` shares the number of `overflow`."""

    __slots__ = ("_cut", "_left", "_overflow", "_size", "full")

    def __init__(
        self,
        limit: int,
        overflow: Key,
        size: Callable[[Key], int] = lambda _: 1,
        cut: Callable[[Key], Key] = lambda key: key,
    ) -> None:
        super().__init__()
        self._left = limit
        self._overflow = overflow
        self._size = size
        self._cut = cut
        self.full = False

    def __missing__(self, key: Key) -> int:
        key = self._cut(key)
        known = self.get(key)
        if known is not None:
            return known
        self._left -= self._size(key)
        if self._left < 0 and key != self._overflow:
            self.full = True
            return self[self._overflow]
        number = self[key] = len(self)
        return number

    def numbers(self, keys: Iterable[Key]) -> Array:
        """The number of each key."""
        return np.fromiter(map(self.__getitem__, keys), dtype=np.int32)


Array = np.ndarray[Any, Any]
"""One column, whatever its element type."""


def int32s(values: list[int]) -> Array:
    """Small integers as a column."""
    return np.fromiter(values, dtype=np.int32, count=len(values))


SETTLED_ROWS = 2**16


class Gathered:
    """The columns of one table as they grow, by name."""

    def __init__(self) -> None:
        self._parts: defaultdict[str, list[Array]] = defaultdict(list)
        self._settled = 0
        self._loose_rows = 0
        self.rows = 0

    def add(self, rows: int, **columns: Array) -> None:
        """Appends `rows` rows; every call names the same columns."""
        self.rows += rows
        for name, values in columns.items():
            self._parts[name].append(values)
        self._loose_rows += rows
        if self._loose_rows >= SETTLED_ROWS:
            # Many small arrays between short-lived events would keep the heap from ever shrinking.
            for parts in self._parts.values():
                parts[self._settled :] = [_apart(parts[self._settled :])]
            self._settled += 1
            self._loose_rows = 0

    def column(self, name: str, dtype: type = np.int64) -> Array:
        """One column as a whole; its parts are given up, so that the text of a trace is never held twice."""
        parts = self._parts.pop(name, [])
        return _apart(parts) if parts and self.rows else np.empty(0, dtype=dtype)

    def parts(self, name: str) -> list[Array]:
        """One column in pieces, as it stands."""
        return self._parts.get(name, [])

    def portions(self) -> Iterator[tuple[int, dict[str, Array]]]:
        """(rows, columns) piece by piece, in order; they are given up as they go."""
        while self._parts and all(self._parts.values()):
            portion = {name: parts.pop(0) for name, parts in self._parts.items()}
            yield len(next(iter(portion.values()))), portion

    def columns(self) -> list[str]:
        """The columns that were not taken yet."""
        return list(self._parts)

    def take_over(self, other: Gathered) -> None:
        """Appends the rows of `other`, which has the same columns and is empty afterwards."""
        for name in other.columns():
            self._parts[name] += other._parts.pop(name)
        self.rows += other.rows


def _apart(parts: list[Array]) -> Array:
    """The parts as one array that lies outside of the heap: freed, it goes back to the system at once.

    The heap keeps what was freed below something that is still in use, and then a trace takes twice its size.
    """
    rows, dtype = sum(map(len, parts)), np.result_type(*parts)
    whole: Array = np.frombuffer(mmap.mmap(-1, rows * dtype.itemsize), dtype=dtype)
    return np.concatenate(parts, out=whole)
