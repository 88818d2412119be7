"""Sizes and element types of operators' inputs, where they were recorded."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.trace.model import HostOps, Shapes

MAX_DIMS = 16

Dims = tuple[int, ...]


class Inputs(NamedTuple):
    """Inputs of one operator, in order; an input that is no tensor has no sizes."""

    dims: tuple[Dims, ...]
    types: tuple[str, ...]


NOTHING = Inputs((), ())


@dataclass(frozen=True, slots=True, eq=False)
class OpShapes:
    """Decodes each distinct text once."""

    needs: ClassVar[Needs] = ()

    texts: tuple[Shapes, ...]
    _known: dict[int, Inputs] = field(default_factory=dict)

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Needs a recording with shapes."""
        if not (facts.trace.host_ops.shapes >= 0).any():
            return NotApplicable("needs the operators' input shapes; record with record_shapes=True")
        return cls(facts.trace.shapes)

    def of(self, ops: HostOps, row: int) -> Inputs:
        """Inputs of one operator; nothing where they were not recorded or cannot be read."""
        number = int(ops.shapes[row])
        if number < 0:
            return NOTHING
        if number not in self._known:
            self._known[number] = decoded(self.texts[number])
        return self._known[number]


def decoded(text: Shapes) -> Inputs:
    """Inputs that such texts tell; nothing where they cannot be read."""
    try:
        dims, types = json.loads(text.dims or "[]"), json.loads(text.types or "[]")
    except ValueError:
        return NOTHING
    if not isinstance(dims, list) or not isinstance(types, list):
        return NOTHING
    return Inputs(tuple(map(_sizes, dims)), tuple(str(kind) for kind in types))


def _sizes(value: Any) -> Dims:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_DIMS:
        return ()
    if not all(isinstance(size, int) and 0 <= size < 2**40 for size in value):
        return ()
    return tuple(value)
