"""Public records for tests that draw them: what a test does not name is null, zero or empty."""

from __future__ import annotations

import dataclasses
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from tightship_platform.results.codec import decode

T = TypeVar("T")
BLANK = {int: 0, float: 0.0, str: "", bool: False}


def make(kind: type[T], fields: dict[str, Any] | None = None, **more: Any) -> T:
    """A record of JSON values; those in it may be incomplete in the same way."""
    return decode(kind, _filled(kind, (fields or {}) | more), kind.__name__)


def account_groups(buckets: dict[str, dict[str, int]]) -> list[dict[str, Any]]:
    """Fields of groups that spent this: key → bucket → device-ns."""
    return [{"key": key, "device_ns": sum(spent.values()), "buckets": spent} for key, spent in buckets.items()]


def _filled(kind: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints = get_type_hints(kind)
        given = {name: _filled(hints[name], part) for name, part in value.items()}
        return {field.name: _blank(hints[field.name], field) for field in dataclasses.fields(kind)} | given
    if get_origin(kind) is list and isinstance(value, list):
        return [_filled(get_args(kind)[0], part) for part in value]
    if value is not None and NoneType in get_args(kind):
        return _filled(next(one for one in get_args(kind) if one is not NoneType), value)
    return value


def _blank(kind: Any, field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if NoneType in get_args(kind):
        return None
    if dataclasses.is_dataclass(kind):
        return _filled(kind, {})
    return BLANK[kind] if kind in BLANK else get_origin(kind)()
