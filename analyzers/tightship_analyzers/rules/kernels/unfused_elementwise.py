"""Unfused elementwise chains: memory-bound kernels in a row where one would do.

## What it finds
At least two different calls of elementwise operators, casts, reductions or norms on one stream with nothing else
between them (RMS norm, rotary embedding, SiLU · mul, residual and norm, batch norm and ReLU, forward and backward),
short kernels and long ones; together they would give back more than 2 % of the step. Kernels of the optimizer, of
`zero_grad` and of unfused attention belong to those rules; kernels of compilers and of extensions are taken for fused,
except for runs of a serving engine's kernels in a replayed graph that are hardly longer than an empty one.

## Why it costs
Each of them reads its inputs from memory and writes its result back, and each has the fixed cost of a kernel. Fused, a
chain reads and writes once.

## Example
```python
variance = x.float().pow(2).mean(-1, keepdim=True)
x = weight * (x.float() * torch.rsqrt(variance + eps)).to(x.dtype)
```

## Use instead
```python
x = F.rms_norm(x, (size,), weight, eps)       # one kernel, where there is such an operator
model = torch.compile(model)                  # or for each block: block.compile()
```

With recorded shapes the tensors that the kernels hand on are known. The low end: they are not read again. The high
end: each tensor is moved once, at 80 % of the device's memory rate (of an unknown device: at the chain's own rate). The
value is the middle between the high end and neither reading nor writing what is handed on. Without shapes the low end
is 0, the value two thirds of all but the longest kernel of each chain, and the high end all of these. The short pauses
within a chain count as well, up to 10 µs each; of longer ones the host is the cause.

## Known misses
Jobs on a CPU are not judged: what fused code takes there, the recorded operators do not tell. Elementwise kernels that
stand alone between two matrix products: a compiler fuses them only with products of its own.
Gradients that are added up, and loops over parameters. The host time that a compiled region needs less counts as far as
the device is spared, no further; see `launch-bound`. No finding where the device waits for workers of the data loader,
or idles for its host for longer than it would be spared in a trace that cannot be simulated.

## Source
https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html ("Fuse operations");
https://docs.pytorch.org/docs/stable/torch.compiler.html. A launch takes 3 to 10 µs. 2 % of the step: some such chains
are in every uncompiled model.
"""

from __future__ import annotations

import re

import numpy as np

from tightship_analyzers.facts.activity.cause import Cause
from tightship_analyzers.facts.idle.causes import IdleCauses
from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.seen_names import SeenNames
from tightship_analyzers.facts.roofline.chains import ENGINE, MAX_GAP_NS, MEMORY_BOUND, Chains
from tightship_analyzers.facts.roofline.fusion import FusionCandidate, FusionCandidates
from tightship_analyzers.facts.simulation.dependency_graph import DependencyGraph
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import (
    Where,
    claim,
    costliest,
    gone,
    in_window,
    is_worth,
    share_of,
    time_of,
    waits_for_workers,
    within_window,
)
from tightship_analyzers.findings.evidence import change, fact
from tightship_analyzers.findings.model import Judgement, TraceRule
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Int64s
from tightship_platform.results.evidence import Evidence
from tightship_platform.units import format_ns, plural

MIN_STEP_FRAC = 0.02
"""Share of the step below which it is no finding."""
MAX_PAUSE_NS = 10_000
"""A longer one is no launch's cost; source: the page."""
NOT_THE_HOST = (Cause.DEVICE_DEPENDENCY, Cause.WINDOW_EDGE)
"""Idle time that the host has not caused."""
MOST_SHOWN = 3
"""Kinds of chains that are named."""
MOST_OPS = 10
"""Operators of a chain that are named."""
COMPILED = re.compile(r"^CompiledFunction")
INDUCTOR = re.compile(r"^triton_")
"""A graph that was compiled and shows no kernel of Inductor runs operator by operator."""
ENGINE_FIX = (
    "Use the engine's fused operators: routing in one kernel, the norm with what comes before it, the rotary embedding "
    "with the write to the cache"
)
OPERATORS = r"^aten::(?:add|sub|mul|div|pow|exp|log|sqrt|rsqrt|tanh|sigmoid|silu|gelu|relu|where|masked_fill)_?$"
"""Elementwise ones. On a CPU, where no kernel shows that there is something to judge, they do."""
RMS_NORM = ("mean", "rsqrt")
"""Operators of an RMS norm that is spelt out."""


def judge(facts: Facts) -> Judgement:
    """All chains together, at the place that costs most."""
    chains, kernels = facts[Chains], facts[KernelOps]
    if not len(chains):
        return []
    events = kernels.events.take(chains.rows)
    saved = chains.device_ns - chains.expected_ns
    frac = (saved / chains.device_ns)[chains.number]
    pauses = within_window(facts, _pauses(facts, chains))
    claims = within_window(facts, gone(events, frac)) | pauses
    if not is_worth(facts, claims, MIN_STEP_FRAC):
        return []
    candidates = facts[FusionCandidates].rows
    inside_frac = (claims.measure_ns - pauses.measure_ns) / max(1, int(saved.sum()))
    low, high = (
        round(inside_frac * int((chains.device_ns - ns).sum())) for ns in (chains.slowest_ns, chains.fastest_ns)
    )
    if waits_for_workers(facts) or _device_waits(facts, claims.measure_ns):
        return []
    of_engine = ENGINE.search(candidates[0].ops[0]) is not None
    running = within_window(facts, Intervals.of_table(events))
    longest = chains.longest(kernels)
    others = np.setdiff1d(chains.rows, longest)
    return [
        claim(
            facts,
            RULE,
            claims,
            title=f"Unfused {'short kernels' if of_engine else 'elementwise chains'} take {share_of(facts, running)}",
            where=_where(facts, candidates, np.rint(events.dur_ns * frac).astype(np.int64)),
            fix=ENGINE_FIX if of_engine else _fix(facts, candidates),
            low_ns=low,
            high_ns=high + pauses.measure_ns,
            evidence=[
                fact(
                    f"{plural(len(events), 'kernel')} in {plural(len(chains), 'chain')} {in_window(facts)} take "
                    f"{time_of(facts, int(chains.device_ns.sum()))}; fused, "
                    f"{time_of(facts, int(chains.expected_ns.sum()))}",
                    len(events),
                    "kernels",
                ),
                *(_described(facts, chains, one) for one in candidates[:MOST_SHOWN]),
                fact(f"Between them the device idles for {time_of(facts, pauses.measure_ns)}")
                if pauses.measure_ns
                else None,
                None
                if of_engine or chains.sized.any()
                else fact("Which tensors they hand on is not recorded; record with shapes for a narrower saving"),
                _change(candidates[0], of_engine=of_engine),
            ],
            without=Edits.without_device(kernels.row[others])
            | Edits.without_device(kernels.row[longest], chains.expected_ns / kernels.events.dur_ns[longest])
            | _without_dispatch(facts, chains, longest),
        )
    ]


def _pauses(facts: Facts, chains: Chains) -> Intervals:
    """Short ones between the kernels of a chain, in which the device does nothing."""
    events, number = facts[KernelOps].events.take(chains.rows), chains.number
    start, end = events.end_ns[:-1], events.start_ns[1:]
    short = (np.diff(number) == 0) & (end - start <= MAX_PAUSE_NS)
    return Intervals.of(start[short], end[short]) - Intervals.of_table(facts.trace.device_events)


def _device_waits(facts: Facts, saved_ns: int) -> bool:
    """Does the device idle for its host for longer than it would be spared, in a trace that cannot be simulated? Then
    nothing shows that a step gets shorter."""
    graph, idle = facts.find(DependencyGraph), facts.find(IdleCauses)
    if idle is None or (graph is not None and graph.distrust is None):
        return False
    causes = idle.window.by_cause()
    return saved_ns < sum(ns for cause, ns in causes.items() if cause not in NOT_THE_HOST)


def _without_dispatch(facts: Facts, chains: Chains, longest: Int64s) -> Edits:
    """Host time of a chain, all but that of the operator of its longest kernel: the region is one call. As much as the
    device is spared at most: what a step gains besides by launching less is `launch-bound`. Of a chain with something
    else among its launches, or with a long pause, only that of its operators."""
    kernels, ops, launches = facts[KernelOps], facts.trace.host_ops, facts.trace.launches
    op, number = kernels.op[chains.rows], chains.number
    known = op >= 0
    op, number = op[known], number[known]
    saved = chains.device_ns - chains.expected_ns
    edits = Edits()
    for tid in np.unique(ops.tid[op]).tolist():
        own = ops.tid[op] == tid
        mine, chain = op[own], number[own]
        first = np.flatnonzero(np.append(True, np.diff(chain) != 0))
        size = np.diff(np.append(first, len(mine)))
        start, end = np.minimum.reduceat(ops.start_ns[mine], first), np.maximum.reduceat(ops.end_ns[mine], first)
        calls = np.sort(launches.start_ns[launches.tid == tid])
        alone = np.searchsorted(calls, end) - np.searchsorted(calls, start) == size
        whole = alone & (end - start <= size * MAX_GAP_NS)
        most = saved[chain[first]]
        each = np.repeat(~whole, size)
        begun, least = ops.start_ns[mine][each], np.repeat(most // size, size)[each]
        spans = Intervals.of(start[whole], np.minimum(end, start + most)[whole])
        spans |= Intervals.of(begun, np.minimum(ops.end_ns[mine][each], begun + least))
        kept = kernels.op[longest[chain[first]]]
        edits |= Edits.without_host(tid, spans - Intervals.of_table(ops.take(kept[kept >= 0])))
    return edits


def _where(facts: Facts, candidates: tuple[FusionCandidate, ...], saved_ns: Int64s) -> Where:
    """The module and function of the costliest chains where stacks tell, else their operators."""
    places: dict[str, int] = {}
    for one in candidates:
        if one.place:
            place = f"{one.module}, {one.place}" if one.module else one.place
            places[place] = places.get(place, 0) + one.device_ns - one.expected_ns
    if places:
        (place, _), *elsewhere = sorted(places.items(), key=lambda item: -item[1])
        return Where(place, elsewhere)
    return costliest(facts, facts[KernelOps].op[facts[Chains].rows], saved_ns, "elementwise kernels")


def _described(facts: Facts, chains: Chains, one: FusionCandidate) -> Evidence:
    """`48 × Qwen2RMSNorm (copy_ → pow → mean → …): 8.1 ms of a step …, fused 1.9 ms`."""
    count = facts[Window].count
    size = int(np.diff(chains.first)[one.chains].sum()) // len(one.chains)
    before, after = (format_ns(ns // count) for ns in (one.device_ns, one.expected_ns))
    name = f"{one.module}: " if one.module else ""
    return fact(
        f"{name}{_ops(one)}, {plural(len(one.chains), 'chain')} of {plural(size, 'kernel')}: {before}, fused {after}",
        (one.device_ns - one.expected_ns) / count,
        "ns",
    )


def _ops(one: FusionCandidate) -> str:
    names = [op.removeprefix("aten::") for op in one.ops]
    return " → ".join(names[:MOST_OPS]) + (" → …" if len(names) > MOST_OPS else "")


def _fix(facts: Facts, candidates: tuple[FusionCandidate, ...]) -> str:
    seen = facts[SeenNames]
    if seen.show(COMPILED, in_frames=False) and not seen.show(INDUCTOR, in_frames=False):
        return "Compile with a backend that fuses: torch.compile(model, backend='inductor')"
    modules = list(dict.fromkeys(one.module for one in candidates if one.module))[:MOST_SHOWN]
    what = f"Put {', '.join(modules)} under torch.compile" if modules else "Put the model under torch.compile"
    norms = any(all(f"aten::{name}" in one.ops for name in RMS_NORM) for one in candidates)
    return what + (", or use F.rms_norm for the norms" if norms else ", or use fused operators")


def _change(one: FusionCandidate, *, of_engine: bool) -> Evidence:
    if of_engine:
        return change(_ops(one), "one kernel")
    if one.module:
        return change(f"block(x)  # {one.module}: {_ops(one)}", "block.compile()  # once; then block(x)")
    return change(f"y = block(x)  # {_ops(one)}", "y = torch.compile(block)(x)")


RULE = TraceRule(
    id="unfused-elementwise",
    needs=(Window, KernelOps, Chains, FusionCandidates, SeenNames),
    title="Unfused elementwise chains",
    fix="Fuse them: torch.compile the block",
    judge=judge,
    page=__doc__ or "",
    signs=re.compile(f"{MEMORY_BOUND.pattern}|{ENGINE.pattern}|{OPERATORS}", re.IGNORECASE),
)
