"""What calls of memory-bound operators read and write, as far as recorded shapes tell, and what of it one fused kernel
would have to.

Tensors are known by size and type only. So a result serves one later call that reads a tensor like it, and whatever no
later call reads is written; a call that comes again and again is a loop over tensors, which do not feed each other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from tightship_analyzers.facts.program.op_shapes import Dims, Inputs
from tightship_analyzers.facts.roofline.work import COMPARISONS, ELEMENT, ONLY_WRITTEN, broadcast, promoted

REDUCTIONS = frozenset(
    ("all", "amax", "amin", "any", "linalg_vector_norm", "logsumexp", "max", "mean", "min", "norm", "prod", "std")
) | {"sum", "var", "var_mean"}
"""Operators whose result is small; over which sizes they reduce is not recorded."""
ACROSS_ROWS = frozenset(("sum",))
"""Of them, those that often reduce the rows away (gradients of biases): a compiler makes another kernel of that,
which reads everything again."""
NORMALIZATION = re.compile(r"(batch|layer|group|instance|rms)_?norm|softmax")


class Tensor(NamedTuple):
    """Sizes, element type and bytes."""

    dims: Dims
    dtype: str
    bytes: int


class Traffic(NamedTuple):
    """One call."""

    reads: tuple[Tensor, ...]
    result: Tensor | None
    """None where it is small."""
    joins: bool = True
    """Whether a kernel that makes what it reads can go on with it at once."""
    is_fused: bool = False
    """Whether it is what a compiler would make of it: a norm, a softmax."""

    @property
    def bytes(self) -> int:
        """All that it reads and writes."""
        return sum(tensor.bytes for tensor in self.reads) + (self.result.bytes if self.result is not None else 0)


class Link(NamedTuple):
    """A result that a later call of the chain reads: fused, it is neither written nor read."""

    maker: int
    """Number of the call."""
    reader: int
    bytes: int


class Moved(NamedTuple):
    """What several calls in a row move, of those whose tensors are known."""

    call_bytes: tuple[int, ...]
    """(calls,)"""
    links: tuple[Link, ...]
    """A result serves one later call only."""
    fused: tuple[int, ...]
    """Numbers of the calls that are fused already."""
    least: int
    """Bytes of one kernel that reads each size and type of tensor once and writes the largest result that is left."""


def traffic_of(name: str, inputs: Inputs) -> Traffic | None:
    """Of one call of an operator; None where its inputs do not tell."""
    base = name.removeprefix("aten::")
    in_place = base.endswith("_")
    base = base.removesuffix("_")
    tensors = []
    for number, (dims, kind) in enumerate(zip(inputs.dims, inputs.types, strict=False)):
        if not dims:
            if "List" in kind and kind != "ScalarList":
                return None
            continue
        element = ELEMENT.get(kind.lower())
        if element is None:
            return None
        tensors.append((number, Tensor(dims, element[0], prod(dims) * element[1]), element))
    if not tensors:
        return None
    reads = tuple(tensor for _, tensor, _ in tensors)
    first = reads[0]
    if base in REDUCTIONS:
        return Traffic(reads, None, joins=base not in ACROSS_ROWS)
    if NORMALIZATION.search(base):
        return Traffic(reads, first, is_fused=True)
    if in_place or base in ONLY_WRITTEN:
        if tensors[0][0] != 0:
            return None
        return Traffic(reads[1:] if base in ONLY_WRITTEN else reads, first)
    sizes = broadcast([tensor.dims for tensor in reads])
    if sizes is None:
        return None
    element = ("int8", 1) if base in COMPARISONS else promoted(element for _, _, element in tensors)
    return Traffic(reads, Tensor(sizes, element[0], prod(sizes) * element[1]))


def moved_by(calls: Sequence[Traffic | None], kinds: Sequence[int]) -> Moved:
    """What calls in a row move; `kinds` says which of them are alike."""
    links: list[Link] = []
    waiting: dict[Tensor, list[int]] = {}
    made: list[tuple[Tensor, int]] = []
    seen: set[Tensor] = set()
    results: dict[int, int] = {}
    least = 0
    for number, call in enumerate(calls):
        alike = number > 0 and kinds[number] == kinds[number - 1]
        if not alike:
            for tensor, maker in made:
                waiting.setdefault(tensor, []).append(maker)
            made = []
        if call is None:
            continue
        for tensor in call.reads:
            if call.joins and waiting.get(tensor):
                links.append(Link(waiting[tensor].pop(), number, tensor.bytes))
            least += 0 if tensor in seen and not alike else tensor.bytes
            seen.add(tensor)
        if call.result is not None:
            least += call.result.bytes if alike else 0
            results[number] = 0 if alike else call.result.bytes
            made.append((call.result, number))
            seen.add(call.result)
    handed_on = {link.maker for link in links}
    return Moved(
        call_bytes=tuple(0 if call is None else call.bytes for call in calls),
        links=tuple(links),
        fused=tuple(number for number, call in enumerate(calls) if call is not None and call.is_fused),
        least=least + max((size for number, size in results.items() if number not in handed_on), default=0),
    )
