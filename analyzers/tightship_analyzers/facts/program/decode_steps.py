"""The steps of a server that only generate, as vLLM, SGLang and ATOM mark them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.trace.model import Annotations, Int64s

VLLM = re.compile(r"execute_(?:\d+_)?context_(\d+)\(.*\)_generation_\d+\((?:sq)?(\d+)")
"""`execute_context_2(512)_generation_30(30)`: prompts and requests that decode, with their tokens;
`execute_32_context_0(sq0sk0…)_generation_32(sq32sk55086…)` adds sums of their lengths."""
SGLANG = re.compile(r"step\[DECODE bs=(\d+)")
"""`step[DECODE bs=32]`; steps with prompts are `EXTEND` or `MIXED`."""
ATOM = re.compile(r"(?:eager_)?decode\[bs=\d+ tok=(\d+)")
"""`decode[bs=32 tok=64 d=32]`: requests, and tokens with the speculative ones; steps with prompts are `prefill`."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodeSteps:
    """Steps without a prompt: one token, or a few speculative ones, for each request."""

    needs: ClassVar[Needs] = ()

    marks: Annotations
    tokens: Int64s
    """(marks,) that each computes."""
    whole: bool
    """Each mark is a whole step. SGLang marks parts of one, too, where its graph has several."""

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Needs marks of such steps."""
        trace = facts.trace
        named = {number: trace.names[number] for number in np.unique(trace.annotations.name).tolist()}
        tokens = {number: count for number, name in named.items() if (count := _tokens(name)) > 0}
        marks = trace.annotations.take(np.isin(trace.annotations.name, list(tokens)))
        if not len(marks):
            return NotApplicable("needs marked decode steps of vLLM, SGLang or ATOM; the trace holds none")
        counts = np.array([tokens[number] for number in marks.name.tolist()], dtype=np.int64)
        return cls(marks, counts, not any(SGLANG.match(named[number]) for number in tokens))


def _tokens(name: str) -> int:
    """0 where it marks no step that only decodes."""
    vllm, other = VLLM.match(name), SGLANG.match(name) or ATOM.match(name)
    if vllm is not None:
        return 0 if int(vllm[1]) else int(vllm[2])
    return int(other[1]) if other is not None else 0
