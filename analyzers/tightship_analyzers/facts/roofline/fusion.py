"""Chains of memory-bound kernels under one module: what a compiler would make one kernel of.

A chain is what one stream did without anything else in between: calls of elementwise operators on as many elements
each, launched under the same module. Fused, the results between them need neither be written nor read again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.facts.roofline.measured import OpWork, Roofline
from tightship_analyzers.facts.roofline.work import Family
from tightship_analyzers.metrics.device_events import by_stream
from tightship_analyzers.metrics.launching_ops import innermost
from tightship_analyzers.trace.columns import EventKind
from tightship_platform.text import shown

MODULE = "nn.Module: "
INSTANCE = re.compile(r"_\d+$")
MOST_OPS_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionCandidate:
    """All chains of the same operators under modules of one class."""

    module: str
    """Class of the modules: `QuickGELUActivation`."""
    modules: int
    """How many of them."""
    ops: tuple[str, ...]
    """The operators of a chain, in order."""
    chains: int
    device_ns: int
    """Of all chains."""
    saving_ns: int
    """Of all chains, if nobody else needs the results between (a backward may): a bound. The time that those bytes
    take at the device's memory rate, but not more than what the kernels took beyond the least time of one."""


@dataclass(slots=True)
class _Sum:
    modules: set[str] = field(default_factory=set)
    chains: int = 0
    device_ns: int = 0
    saving_ns: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class FusionCandidates:
    """Ranked by saving."""

    needs: ClassVar[Needs] = (Roofline, KernelOps)

    rows: tuple[FusionCandidate, ...]

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Needs what the roofline needs, and stacks that show modules."""
        roofline, kernels = facts[Roofline], facts[KernelOps]
        modules = _modules(facts, [call.op for call in roofline.calls])
        if not modules:
            return NotApplicable("needs Python stacks with modules; record with --stacks")
        ops, names = facts.trace.host_ops, facts.trace.names
        found: dict[tuple[str, tuple[str, ...]], _Sum] = {}
        for chain in _chains(roofline, kernels, modules):
            module = modules[chain[0].op]
            key = INSTANCE.sub("", module), tuple(names[int(ops.name[call.op])] for call in chain)
            total = found.setdefault(key, _Sum())
            total.modules.add(module)
            total.chains += 1
            total.device_ns += sum(call.device_ns for call in chain)
            total.saving_ns += _saving_ns(chain, roofline.device.memory_bytes_per_s)
        rows = [
            FusionCandidate(
                module=shown(module),
                modules=len(total.modules),
                ops=tuple(map(shown, run)),
                chains=total.chains,
                device_ns=total.device_ns,
                saving_ns=total.saving_ns,
            )
            for (module, run), total in found.items()
        ]
        return cls(tuple(sorted(rows, key=lambda row: (-row.saving_ns, row.module, row.ops))))


def _saving_ns(chain: list[OpWork], memory_bytes_per_s: float) -> int:
    """Each result but the last is written by one call and read by the next."""
    spared = 2 * sum(call.work.output_bytes for call in chain[:-1])
    moved = max(0, sum(call.work.bytes for call in chain) - spared)
    device_ns = sum(call.device_ns for call in chain)
    return max(0, round(min(spared / memory_bytes_per_s * 1e9, device_ns - moved / memory_bytes_per_s * 1e9)))


def _chains(roofline: Roofline, kernels: KernelOps, modules: dict[int, str]) -> Iterator[list[OpWork]]:
    """Two calls or more, next to each other on a stream, under one module, on as many elements."""
    fusable = {
        call.op: call for call in roofline.calls if call.work.family is Family.ELEMENTWISE and call.op in modules
    }
    computes = kernels.events.kind == EventKind.KERNEL
    for _, _, rows in by_stream(kernels.events):
        chain: list[OpWork] = []
        for row in rows.tolist():
            call = fusable.get(int(kernels.op[row])) if computes[row] else None
            if call is not None and chain:
                last = chain[-1]
                if call.op == last.op:
                    continue
                if modules[call.op] == modules[last.op] and call.work.flops == last.work.flops:
                    chain.append(call)
                    continue
            if len(chain) > 1:
                yield chain
            chain = [call] if call is not None else []
        if len(chain) > 1:
            yield chain


def _modules(facts: Facts, rows: list[int]) -> dict[int, str]:
    """Row in `Trace.host_ops` → the innermost module around it, where a stack shows one."""
    trace = facts.trace
    frames = trace.frames.take(trace.names.mask(trace.frames.name, lambda name: name.startswith(MODULE)))
    ops = trace.host_ops.take(np.array(rows, dtype=np.int64))
    result: dict[int, str] = {}
    for tid in np.unique(frames.tid).tolist():
        own, mine = np.flatnonzero(frames.tid == tid), np.flatnonzero(ops.tid == tid)
        around = innermost(frames.start_ns[own], frames.end_ns[own], ops.start_ns[mine])
        for place, frame in zip(mine.tolist(), around.tolist(), strict=True):
            if frame >= 0:
                result[rows[place]] = trace.names[int(frames.name[own[frame]])].removeprefix(MODULE)
    return result
