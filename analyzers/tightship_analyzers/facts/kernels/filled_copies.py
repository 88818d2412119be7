"""Tensors that the host fills and then copies to the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.program.op_tree import OpTree
from tightship_analyzers.trace.columns import EventKind
from tightship_analyzers.trace.joins import numbers_in
from tightship_analyzers.trace.model import DeviceEvents, HostOps, Int64s

FILLING = frozenset(
    f"aten::{name}"
    for name in ("zeros", "ones", "full", "eye", "arange", "linspace", "rand", "randn", "randint", "randperm", "fill_",
                 "zero_", "uniform_", "normal_", "bernoulli_", "zeros_like", "ones_like", "full_like", "rand_like",
                 "randn_like")
)  # fmt: skip
"""Operators that need no data to make a tensor."""
COPYING = frozenset(("aten::to", "aten::_to_copy", "aten::copy_", "aten::cuda"))


@dataclass(frozen=True, slots=True, eq=False)
class FilledCopies:
    """Pairs of outermost operators: one fills a tensor on the host, the next one on the thread copies it over."""

    needs: ClassVar[Needs] = (OpTree, KernelOps)

    fills: HostOps
    copies: HostOps
    """(pairs,) each follows its fill."""
    events: DeviceEvents
    """(pairs,) the copy on the device."""
    row: Int64s
    """(pairs,) row of it in `Trace.device_events`."""
    op: Int64s
    """(pairs,) row in `Trace.host_ops` of the innermost operator that copies."""

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """Needs operators and copies to the device."""
        tree, kernels = facts[OpTree], facts[KernelOps]
        names, launches, events = facts.trace.names, facts.trace.launches, kernels.events
        launched = events.launch >= 0
        is_copy = launched & (events.kind == EventKind.COPY)
        is_copy &= names.mask(events.name, lambda name: "HtoD" in name or "HostToDevice" in name)
        pairs: list[tuple[int, int, int]] = []
        top = tree.top
        for tid in numbers_in(top.tid).tolist():
            own = np.flatnonzero(top.tid == tid)
            fills = names.mask(top.name[own], FILLING.__contains__)
            moves = names.mask(top.name[own], COPYING.__contains__)
            follows = np.flatnonzero(fills[:-1] & moves[1:])
            if not len(follows):
                continue
            called = np.flatnonzero(launched & (launches.tid[events.launch] == tid))
            called = called[np.argsort(launches.start_ns[events.launch[called]], kind="stable")]
            at_ns = launches.start_ns[events.launch[called]]
            for fill in follows.tolist():
                begin, middle, end = np.searchsorted(
                    at_ns, (top.start_ns[own[fill]], top.end_ns[own[fill]], top.end_ns[own[fill + 1]])
                ).tolist()
                copied = [row for row in called[middle:end].tolist() if is_copy[row]]
                # A fill that launches something is one on the device.
                if begin == middle and copied:
                    pairs.append((int(own[fill]), int(own[fill + 1]), copied[0]))
        rows = np.array(pairs, dtype=np.int64).reshape(-1, 3)
        return cls(
            top.take(rows[:, 0]),
            top.take(rows[:, 1]),
            events.take(rows[:, 2]),
            kernels.row[rows[:, 2]],
            kernels.op[rows[:, 2]],
        )
