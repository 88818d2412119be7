"""Chains of memory-bound kernels by the module that does them: what a compiler would make one kernel of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.program.frames import MODULE, place_of, split_name
from tightship_analyzers.facts.program.work_threads import AUTOGRAD_NODE
from tightship_analyzers.facts.roofline.chains import Chains, own_operators
from tightship_analyzers.metrics.launching_ops import innermost
from tightship_analyzers.trace.model import Frames, HostOps, Int64s
from tightship_platform.text import shown

INSTANCE = re.compile(r"_\d+$")
MAX_NAME = 100
FUNCTOR = re.compile(r"\b(?!gpu_kernel)(\w+(?:Functor(?:_\w+)?|_kernel_cuda|_kernel_impl|Ops))\b")
"""What an elementwise kernel or a reduction of torch computes, in its template arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionCandidate:
    """All chains of the same operators under modules of one class."""

    module: str
    """Class of the modules: `QuickGELUActivation`; empty where stacks do not tell."""
    modules: int
    """How many of them; 0 where stacks do not tell."""
    place: str
    """The Python function, also of a library, that does most of a chain: `file.py:12 (forward)`; empty without
    stacks."""
    ops: tuple[str, ...]
    """The operators of a chain, in order; of a graph that is replayed, its kernels."""
    chains: Int64s
    """(chains,) rows of `Chains`."""
    device_ns: int
    """Of all chains."""
    expected_ns: int
    """Of as many fused kernels."""
    fastest_ns: int

    @property
    def saving_ns(self) -> int:
        """Of all chains, if nobody else needs the results between (a backward may): an upper bound."""
        return self.device_ns - self.fastest_ns


@dataclass(frozen=True, slots=True, eq=False)
class FusionCandidates:
    """Ranked by what they are expected to give back."""

    needs: ClassVar[Needs] = (Chains, KernelOps)

    rows: tuple[FusionCandidate, ...]

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """Stacks tell modules and places, operators of the backward pass those of their forward operators."""
        chains, kernels, names = facts[Chains], facts[KernelOps], facts.trace.names
        leader = kernels.op[chains.longest(kernels)]
        around = _Around.of(facts, _forward(facts, leader))
        groups: dict[tuple[str, str, tuple[str, ...]], list[int]] = {}
        for number, ops in enumerate(_operators(facts, chains)):
            module = names[int(around.module[number])] if around.module[number] >= 0 else ""
            place = names[int(around.place[number])] if around.place[number] >= 0 else ""
            groups.setdefault((INSTANCE.sub("", module), place, ops), []).append(number)
        rows = []
        for (module, place, ops), numbers in groups.items():
            mine = np.array(numbers, dtype=np.int64)
            instances = np.unique(around.module[mine])
            rows.append(
                FusionCandidate(
                    module=shown(module.removeprefix(MODULE), MAX_NAME),
                    modules=int((instances >= 0).sum()),
                    place=place_of(place),
                    ops=tuple(shown(op, MAX_NAME) for op in ops),
                    chains=mine,
                    device_ns=int(chains.device_ns[mine].sum()),
                    expected_ns=int(chains.expected_ns[mine].sum()),
                    fastest_ns=int(chains.fastest_ns[mine].sum()),
                )
            )
        return cls(tuple(sorted(rows, key=lambda row: (row.expected_ns - row.device_ns, row.module, row.ops))))


def _operators(facts: Facts, chains: Chains) -> Iterator[tuple[str, ...]]:
    """Of each chain, in order, one for each call."""
    ops, names = facts.trace.host_ops, facts.trace.names
    op, kernel = own_operators(facts, chains.rows), facts[KernelOps].events.name[chains.rows]
    begins = np.append(True, (np.diff(op) != 0) | (op[1:] < 0))
    begins[chains.first[:-1]] = True
    name = np.where(op >= 0, np.append(ops.name, -1)[op], kernel)
    known: dict[bytes, tuple[str, ...]] = {}
    for begin, end in zip(chains.first[:-1].tolist(), chains.first[1:].tolist(), strict=True):
        mine = name[begin:end][begins[begin:end]]
        key = mine.tobytes()
        if key not in known:
            known[key] = tuple(operator_label(names[int(number)]) for number in mine.tolist())
        yield known[key]


def operator_label(name: str) -> str:
    """The name of an operator; of a kernel of torch what it computes: `MulFunctor`, `sigmoid_kernel_cuda`."""
    computes = FUNCTOR.findall(name)
    if computes:
        return str(computes[-1])
    return name.split("<", 1)[0].rsplit("::", 1)[-1] if "<" in name else name


@dataclass(frozen=True, slots=True, eq=False)
class _Around:
    """Names of the innermost module and Python function around operators; -1: none."""

    module: Int64s
    place: Int64s

    @classmethod
    def of(cls, facts: Facts, rows: Int64s) -> _Around:
        """`rows` in `Trace.host_ops`, or -1."""
        frames, names = facts.trace.frames, facts.trace.names
        modules = frames.take(names.mask(frames.name, lambda name: name.startswith(MODULE)))
        functions = frames.take(names.mask(frames.name, lambda name: split_name(name) is not None))
        return cls(_inside(facts.trace.host_ops, rows, modules), _inside(facts.trace.host_ops, rows, functions))


def _inside(ops: HostOps, rows: Int64s, frames: Frames) -> Int64s:
    result = np.full(len(rows), -1, dtype=np.int64)
    for tid in np.unique(frames.tid).tolist():
        own, mine = np.flatnonzero(frames.tid == tid), np.flatnonzero(np.append(ops.tid, -1)[rows] == tid)
        around = innermost(frames.start_ns[own], frames.end_ns[own], ops.start_ns[rows[mine]])
        result[mine] = np.where(around >= 0, frames.name[own[around]], -1)
    return result


def _forward(facts: Facts, rows: Int64s) -> Int64s:
    """Operators of the backward pass replaced by the forward operator that their autograd node belongs to."""
    ops, names = facts.trace.host_ops, facts.trace.names
    is_node = names.mask(ops.name, lambda name: name.startswith(AUTOGRAD_NODE))
    nodes, forward = np.flatnonzero(is_node & (ops.seq >= 0)), np.flatnonzero(~is_node & (ops.seq >= 0))
    number, first = np.unique(ops.seq[forward], return_index=True)
    result = rows.copy()
    for tid in np.unique(ops.tid[nodes]).tolist():
        own, mine = nodes[ops.tid[nodes] == tid], np.flatnonzero(np.append(ops.tid, -1)[rows] == tid)
        around = innermost(ops.start_ns[own], ops.end_ns[own], ops.start_ns[rows[mine]])
        mine, around = mine[around >= 0], around[around >= 0]
        at = np.minimum(np.searchsorted(number, ops.seq[own[around]]), max(0, len(number) - 1))
        known = number[at] == ops.seq[own[around]] if len(number) else np.zeros(len(at), dtype=np.bool_)
        result[mine[known]] = forward[first[at[known]]]
    return result
