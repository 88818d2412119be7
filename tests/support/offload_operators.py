"""What is known of an operator before it runs: whether it reads numbers, and what its results will look like."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import Any

import torch
from torch import Tensor

_OF_SHAPES_ALONE = {
    *("_has_compatible_shallow_copy_type", "is_same_size", "is_pinned", "_unsafe_view"),
    *("empty_like", "new_empty", "new_empty_strided"),
}


class Kind(Enum):
    """When an operator can run."""

    AT_ONCE = auto()
    """It makes a view, or looks at shapes alone."""
    LATE = auto()
    """All that anybody can see before it has run is the shape of its results."""
    RANDOM = auto()
    """It draws from a generator."""
    READS = auto()
    """Its results are numbers for the host, or of a shape that depends on numbers."""


@dataclass(frozen=True, slots=True)
class Result:
    """One of an operator's results: None, a tensor, or a list of tensors."""

    tensors: tuple[tuple[torch.Size, tuple[int, ...], torch.dtype], ...]
    is_list: bool = False

    def make(self) -> Any:
        """Memory for it."""
        made = [torch.empty_strided(size, stride, dtype=dtype, device="cpu") for size, stride, dtype in self.tensors]
        return made if self.is_list else made[0] if made else None


@cache
def kind_of(func: Any) -> Kind:
    """By the operator's schema and tags."""
    if getattr(func, "namespace", "") != "aten":
        return Kind.READS
    schema, tags = func._schema, set(func.tags)
    if schema.name.partition("::")[2] in _OF_SHAPES_ALONE or torch.Tag.inplace_view in tags:
        return Kind.AT_ONCE
    if any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns):
        return Kind.AT_ONCE
    if torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags:
        return Kind.READS
    if torch.Tag.nondeterministic_seeded in tags and not any(one.name == "dropout_p" for one in schema.arguments):
        return Kind.RANDOM  # attention draws for its dropout, of which the CPU has none
    writes = any(one.alias_info is not None and one.alias_info.is_write for one in schema.arguments)
    if not writes and not any("Tensor" in str(one.type) for one in schema.returns):
        return Kind.READS
    return Kind.LATE


def results_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Result, ...] | None:
    """What a late operator will return: nothing new where it writes into what it was given; None: not known."""
    if any(one.alias_info is not None for one in func._schema.returns) or not func._schema.returns:
        return ()
    key = (func, _key(args), _key(tuple(sorted(kwargs.items()))))
    if key not in _KNOWN:
        _KNOWN[key] = _try(func, args, kwargs)
    return _KNOWN[key]


def written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operator returns that writes into what it was given."""
    found = []
    for one in func._schema.returns:
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.before_set == one.alias_info.before_set:
                found.append(args[place] if place < len(args) else kwargs[argument.name])
    return None if not found else found[0] if len(found) == 1 else tuple(found)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors of arguments or results, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_in(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors_in(one)


_KNOWN: dict[Any, tuple[Result, ...] | None] = {}


def _key(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, list | tuple):
        return tuple(_key(one) for one in value)
    return type(value), value if value.__hash__ is not None else repr(value)


def _try(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Result, ...] | None:
    """Run it on zeros of the same shapes."""
    zeros = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cpu").zero_() for t in tensors_in(args)]
    named = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cpu").zero_() for t in tensors_in(kwargs)]
    rest, rest_named = iter(zeros), iter(named)
    try:
        found = func(*_with(args, rest), **{key: _with(value, rest_named) for key, value in kwargs.items()})
    except Exception:  # it says so itself when it runs
        return None
    results: list[Result] = []
    for one in found if isinstance(found, tuple) else (found,):
        tensors = list(tensors_in(one))
        own = {t.untyped_storage().data_ptr() for t in (*zeros, *named)} - {0}
        if any(t.layout is not torch.strided or t.untyped_storage().data_ptr() in own for t in tensors):
            return None
        if not tensors and one is not None and not isinstance(one, list):
            return None
        results.append(Result(tuple((t.shape, t.stride(), t.dtype) for t in tensors), isinstance(one, list)))
    return tuple(results)


def _with(value: Any, tensors: Iterator[Tensor]) -> Any:
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, list | tuple):
        return type(value)(_with(one, tensors) for one in value)
    return value
