"""Checked records: frozen dataclasses whose fields say in their type what they may hold.

class Window(Section):
    slots: Annotated[int, Whole(2, 10_000)]

A `Section` is checked whenever it is made, by hand or from a file, and knows how to become a mapping and back. Every
refusal is one line that names the field, the value seen and what would do.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, Protocol, Self, Union, get_args, get_origin, get_type_hints

from tightship_offload.errors import PlanError

SHOWN_MAX = 120


class Check(Protocol):
    """What a field may hold, and how it is written down."""

    def take(self, value: Any, where: str) -> Any:
        """The value as the field keeps it.

        :raises PlanError: it may not be held.
        """

    def give(self, value: Any) -> Any:
        """The value as plain YAML data."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `least` to `most`."""

    least: int
    most: int

    def take(self, value: Any, where: str) -> int:
        """See `Check`."""
        if isinstance(value, bool) or not isinstance(value, int) or not self.least <= value <= self.most:
            raise refusal(where, value, f"a whole number from {self.least} to {self.most}")
        return value

    def give(self, value: int) -> int:
        """See `Check`."""
        return value


@dataclass(frozen=True, slots=True)
class Real:
    """A finite number from `least` to `most`."""

    least: float
    most: float

    def take(self, value: Any, where: str) -> float:
        """See `Check`."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or not self.least <= value <= self.most:
            raise refusal(where, value, f"a number from {self.least:g} to {self.most:g}")
        return float(value)

    def give(self, value: float) -> float:
        """See `Check`."""
        return value


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text without control characters."""

    most: int = 200

    def take(self, value: Any, where: str) -> str:
        """See `Check`."""
        if not isinstance(value, str) or not value.strip() or not value.isprintable() or len(value) > self.most:
            raise refusal(where, value, f"a line of 1 to {self.most} characters")
        return value

    def give(self, value: str) -> str:
        """See `Check`."""
        return value


@dataclass(frozen=True, slots=True)
class Flag:
    """true or false."""

    def take(self, value: Any, where: str) -> bool:
        """See `Check`."""
        if not isinstance(value, bool):
            raise refusal(where, value, "true or false")
        return value

    def give(self, value: bool) -> bool:
        """See `Check`."""
        return value


@dataclass(frozen=True, slots=True)
class OneOf:
    """One value of an enumeration."""

    kind: type[StrEnum]

    def take(self, value: Any, where: str) -> StrEnum:
        """See `Check`."""
        if isinstance(value, str):
            for one in self.kind:
                if one.value == str(value):
                    return one
        raise refusal(where, value, f"one of {', '.join(one.value for one in self.kind)}")

    def give(self, value: StrEnum) -> str:
        """See `Check`."""
        return value.value


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list, kept as a tuple."""

    each: Check
    most: int
    ascending: bool = False
    """Every entry is larger than the one before it."""

    def take(self, value: Any, where: str) -> tuple[Any, ...]:
        """See `Check`."""
        if not isinstance(value, list | tuple) or len(value) > self.most:
            raise refusal(where, value, f"a list of at most {self.most} entries")
        taken = tuple(self.each.take(entry, f"{where}[{number}]") for number, entry in enumerate(value))
        if self.ascending and any(b <= a for a, b in pairwise(taken)):
            raise refusal(where, value, "each entry once, in ascending order")
        return taken

    def give(self, value: tuple[Any, ...]) -> list[Any]:
        """See `Check`."""
        return [self.each.give(entry) for entry in value]


@dataclass(frozen=True, slots=True)
class MapOf:
    """A mapping from checked keys to checked values."""

    keys: Check
    values: Check
    most: int

    def take(self, value: Any, where: str) -> Mapping[Any, Any]:
        """See `Check`."""
        if not isinstance(value, Mapping) or len(value) > self.most:
            raise refusal(where, value, f"a mapping of at most {self.most} entries")
        return {
            self.keys.take(key, f"a key of {where}"): self.values.take(entry, f"{where}[{short(key)}]")
            for key, entry in value.items()
        }

    def give(self, value: Mapping[Any, Any]) -> dict[Any, Any]:
        """See `Check`."""
        return {self.keys.give(key): self.values.give(entry) for key, entry in value.items()}


@dataclass(frozen=True, slots=True)
class Nested:
    """Another section."""

    kind: type[Section]

    def take(self, value: Any, where: str) -> Section:
        """See `Check`."""
        if isinstance(value, self.kind):
            return value
        return self.kind.from_mapping(value, where)

    def give(self, value: Section) -> dict[str, object]:
        """See `Check`."""
        return value.as_mapping()


@dataclass(frozen=True, slots=True)
class Maybe:
    """The value, or nothing."""

    check: Check

    def take(self, value: Any, where: str) -> Any:
        """See `Check`."""
        return None if value is None else self.check.take(value, where)

    def give(self, value: Any) -> Any:
        """See `Check`."""
        return None if value is None else self.check.give(value)


@dataclass(frozen=True, kw_only=True)
class Section:
    """Base of the records: checks its fields when it is made.

    :raises PlanError: a field holds what it may not hold.
    """

    def __post_init__(self) -> None:
        where = type(self).__name__.removesuffix("Spec").removesuffix("Plan").lower() or "plan"
        for name, check in _checks(type(self)).items():
            object.__setattr__(self, name, check.take(getattr(self, name), f"{where}.{name}"))

    @classmethod
    def from_mapping(cls, data: Any, where: str) -> Self:
        """The record that plain data describes.

        :raises PlanError: the data are no mapping, or an entry is unknown, missing or not acceptable.
        """
        if not isinstance(data, Mapping):
            raise refusal(where, data, "a mapping")
        checks = _checks(cls)
        for key in data:
            if not isinstance(key, str) or key not in checks:
                raise PlanError(f"{where} has the unknown entry {short(key)}; known: {', '.join(checks)}")
        for one in fields(cls):
            if one.name not in data and one.default is MISSING and one.default_factory is MISSING:
                raise PlanError(f"{where} has no entry {one.name!r}; add it")
        # Checked here under its place in the file, and again, cheaply, under its class when the record is made.
        return cls(**{name: checks[name].take(value, f"{where}.{name}") for name, value in data.items()})

    def as_mapping(self) -> dict[str, object]:
        """Plain data, without what is not set."""
        given = {name: check.give(getattr(self, name)) for name, check in _checks(type(self)).items()}
        return {name: value for name, value in given.items() if value is not None}


def refusal(where: str, value: object, expected: str) -> PlanError:
    """The one line for a value that is not acceptable."""
    return PlanError(f"{where} is {short(value)}; expected {expected}")


def short(value: object) -> str:
    """A value of unknown size and kind as a short printable text."""
    if isinstance(value, list | tuple | dict | set):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 400:
        return f"a number of {value.bit_length()} bits"  # printing it would take long, or be refused by Python
    text = repr(value[: SHOWN_MAX + 1] if isinstance(value, str) else value)
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."


_KNOWN: dict[type, dict[str, Check]] = {}


def _checks(cls: type[Section]) -> dict[str, Check]:
    if cls not in _KNOWN:
        hints = get_type_hints(cls, include_extras=True)
        _KNOWN[cls] = {one.name: _check(hints[one.name]) for one in fields(cls)}
    return _KNOWN[cls]


def _check(hint: Any) -> Check:
    if get_origin(hint) is Annotated:
        check: Check = get_args(hint)[1]
        return check
    if get_origin(hint) in (Union, types.UnionType):
        (inner,) = (one for one in get_args(hint) if one is not type(None))
        return Maybe(_check(inner))
    if isinstance(hint, type) and issubclass(hint, Section):
        return Nested(hint)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return OneOf(hint)
    if hint is bool:
        return Flag()
    raise TypeError(f"no check for a field of type {hint!r}")
