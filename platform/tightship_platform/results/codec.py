"""JSON to records and back, with the standard library alone: a host has no validation library.

Reading is strict about what a record needs and lenient about what it does not know: a newer server may send more keys
and more kinds of evidence, which are left out.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from tightship_platform.errors import Invalid

T = TypeVar("T")
Reader = Callable[[Any], Any]
"""JSON value → the value as its type has it."""


class _Unfit(Exception):
    """A value that is not what its type asks for. The readers around it say where it stands."""

    def __init__(self, value: object, expected: str) -> None:
        super().__init__(expected)
        self.value = value
        self.expected = expected
        self.place = ""


def fields_of(record: Any) -> dict[str, object]:
    """The fields of a record by name, in order: the `default` of `json.dumps`."""
    if hasattr(type(record), "__dataclass_fields__"):
        fields: dict[str, object] = vars(record)
        return fields
    raise TypeError(f"{type(record).__name__} has no form in JSON")


def decode(kind: type[T], value: object, what: str = "answer") -> T:
    """JSON values as a record, or a list or dict of them. `what` names the whole in the error.

    :raises Invalid: a key is missing, or a value of another type.
    """
    try:
        return cast(T, _reader(cast(Any, kind))(value))
    except _Unfit as unfit:
        raise Invalid(f"{what}{unfit.place}", unfit.value, unfit.expected) from None


@cache
def _reader(kind: Any) -> Reader:
    origin, arguments = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _record(kind)
    if origin is list:
        return _tagged(arguments[0]) if _is_tagged(arguments[0]) else _list(_reader(arguments[0]))
    if origin is dict:
        return _dict(_reader(arguments[1]))
    if origin is Literal:
        return _plain(lambda value: value in arguments, " or ".join(map(repr, arguments)))
    if origin in (Union, UnionType) and any(one not in _PLAIN for one in arguments):
        rest = _reader(Union[tuple(one for one in arguments if one is not NoneType)])  # noqa: UP007
        return lambda value: None if value is None else rest(value)
    types = _types(kind)
    return _plain(lambda value: type(value) in types, " or ".join(_PLAIN[one] for one in arguments or (kind,)))


_PLAIN = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "null"}


def _types(kind: Any) -> frozenset[type]:
    """Types of the values that a plain annotation such as `float | None` accepts; none where it is no plain one."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return (
        frozenset((*kinds, *([int] if float in kinds else []))) if all(one in _PLAIN for one in kinds) else frozenset()
    )


def _record(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    fields = [(field.name, _types(hints[field.name]), _reader(hints[field.name])) for field in dataclasses.fields(kind)]
    required = [field.name for field in dataclasses.fields(kind) if not _has_default(field)]

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _Unfit(value, f"an object with the keys of a {kind.__name__}")
        given = {}
        for name, types, reader in fields:
            if name in value:
                item = value[name]
                given[name] = item if type(item) in types else _within(f".{name}", reader, item)
        if len(given) < len(fields) and (missing := [name for name in required if name not in given]):
            raise _Unfit(list(value), f"the keys of this release, of which {', '.join(missing[:3])} are missing")
        return kind(**given)

    return read


def _within(place: str, reader: Reader, value: Any) -> Any:
    try:
        return reader(value)
    except _Unfit as unfit:
        unfit.place = place + unfit.place
        raise


def _list(reader: Reader) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not list:
            raise _Unfit(value, "a list")
        return [_within(f"[{index}]", reader, item) for index, item in enumerate(value)]

    return read


def _dict(reader: Reader) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _Unfit(value, "an object")
        return {key: _within(f".{key}", reader, item) for key, item in value.items()}

    return read


def _is_tagged(kind: Any) -> bool:
    """Whether it is a union of records that say in `kind` which one they are."""
    return get_origin(kind) in (Union, UnionType) and all(dataclasses.is_dataclass(one) for one in get_args(kind))


def _tagged(union: Any) -> Reader:
    """A list of such records; those of a kind that only a newer release knows are left out."""
    readers = {get_args(get_type_hints(one)["kind"])[0]: _reader(one) for one in get_args(union)}

    def read(value: Any) -> Any:
        if type(value) is not list or not all(type(item) is dict for item in value):
            raise _Unfit(value, "a list of objects")
        known = [(index, item) for index, item in enumerate(value) if item.get("kind") in readers]
        return [_within(f"[{index}]", readers[item["kind"]], item) for index, item in known]

    return read


def _plain(accepts: Callable[[Any], bool], expected: str) -> Reader:
    def read(value: Any) -> Any:
        if not accepts(value):
            raise _Unfit(value, expected)
        return value

    return read


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def as_json(record: object) -> dict[str, object]:
    """A record as plain JSON values, for a column of the database."""
    plain: dict[str, object] = json.loads(json.dumps(record, default=fields_of))
    return plain
