"""Unfused elementwise chains: many short kernels where one would do.

## What it finds
Runs of at least 4 elementwise kernels on one stream, none longer than 20 µs and nothing else between them, together
more than 5 % of the step. Runs under the optimizer or `zero_grad` belong to those rules.

## Why it costs
Each of them reads its inputs from memory and writes its result back, and each costs a launch. Fused, a chain reads and
writes once.

## Example
```python
y = x * torch.sigmoid(1.702 * x)
z = (y + bias) * scale
```

## Use instead
```python
@torch.compile
def activation(x, bias, scale):
    return (x * torch.sigmoid(1.702 * x) + bias) * scale
```

The saving is every run but its longest kernel, and the gaps between, as far as the device does nothing else meanwhile.
Its low end is the gaps and half of the kernels.

## Known misses
Chains that a reduction or a copy interrupts. Longer elementwise kernels: those are limited by memory, not by being
many.

## Source
https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html ("Fuse operations"). A launch takes 3 to 10 µs, so up to
20 µs a kernel costs about as much to launch as to run. 5 % of the step: some such chains are in every uncompiled model.
"""

from __future__ import annotations

import re

import numpy as np

from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.kernels.zero_grads import ZERO_GRAD
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.optimizer_steps import OptimizerSteps
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import (
    claim,
    costliest,
    in_window,
    is_worth,
    mostly_in,
    share_of,
    time_of,
    within_window,
)
from tightship_analyzers.findings.evidence import change, fact
from tightship_analyzers.findings.model import Judgement, TraceRule
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Bools, Int64s
from tightship_platform.units import plural

MIN_STEP_FRAC = 0.05
"""Share of the step below which it is no finding."""
MIN_RUN = 4
"""Shorter runs are not worth a compiled region."""
MAX_KERNEL_NS = 20_000
"""Longer kernels are limited by memory, not by their number."""
MAX_GAP_NS = 200_000
"""What lies further apart does not belong together."""

ELEMENTWISE = re.compile(r"elementwise_kernel")


def judge(facts: Facts) -> Judgement:
    """All runs together, at the place that costs most."""
    kernels = facts[KernelOps]
    runs = _runs(facts)
    if not runs:
        return []
    members = np.concatenate(runs)
    spans = Intervals.of(
        np.array([kernels.events.start_ns[run[0]] for run in runs]),
        np.array([kernels.events.end_ns[run[-1]] for run in runs]),
    )
    dur_ns = kernels.events.dur_ns
    longest = np.array([run[int(dur_ns[run].argmax())] for run in runs])
    others = np.ones(len(kernels.events), dtype=np.bool_)
    others[np.setdiff1d(members, longest)] = False
    claims = within_window(facts, spans - Intervals.of_table(kernels.events.take(others)))
    if not is_worth(facts, claims, MIN_STEP_FRAC):
        return []
    work = Intervals.of_table(kernels.events.take(members))
    running = within_window(facts, claims & work).measure_ns
    where = costliest(facts, kernels.op[members], kernels.events.dur_ns[members], "elementwise kernels")
    return [
        claim(
            facts,
            RULE,
            claims,
            title=f"Unfused elementwise chains: {share_of(facts, claims)} recoverable by fusion",
            where=where,
            fix="Fuse the chain: put the block that issues it under torch.compile, or use a fused operator",
            low_ns=claims.measure_ns - running // 2,
            evidence=[
                fact(
                    f"{plural(len(members), 'kernel')} in {plural(len(runs), 'run')} {in_window(facts)}, "
                    f"{len(members) / len(runs):.0f} a run",
                    len(members),
                    "kernels",
                ),
                fact(f"Between them the device idles for {time_of(facts, claims.measure_ns - running)}"),
                mostly_in(facts, kernels.op[members], kernels.events.dur_ns[members]),
                change("y = act(x) * scale + bias", "y = torch.compile(block)(x, scale, bias)"),
            ],
            without=Edits.without_device(kernels.row[np.setdiff1d(members, longest)]),
        )
    ]


def _runs(facts: Facts) -> list[Int64s]:
    """Rows in `KernelOps`, one array per run."""
    kernels, names = facts[KernelOps], facts.trace.names
    events = kernels.events
    short = names.mask(events.name, lambda name: ELEMENTWISE.search(name) is not None)
    short &= (events.dur_ns <= MAX_KERNEL_NS) & ~_elsewhere(facts)
    order = np.lexsort((events.start_ns, events.stream, events.device))
    same = (np.diff(events.stream[order]) == 0) & (np.diff(events.device[order]) == 0)
    near = same & (events.start_ns[order][1:] - events.end_ns[order][:-1] <= MAX_GAP_NS)
    joined = short[order][1:] & short[order][:-1] & near
    bounds = np.concatenate(([0], np.flatnonzero(~joined) + 1, [len(order)]))
    first, size = bounds[:-1], np.diff(bounds)
    # A run of several is short throughout: nothing else is joined to a neighbour.
    long = np.flatnonzero(size >= MIN_RUN)
    return [
        order[begin : begin + count] for begin, count in zip(first[long].tolist(), size[long].tolist(), strict=True)
    ]


def _elsewhere(facts: Facts) -> Bools:
    """(events,) launched by the optimizer or by zero_grad."""
    kernels, launches = facts[KernelOps], facts.trace.launches
    optimizer = facts.find(OptimizerSteps)
    calls = Intervals.of_table(facts.trace.annotations_named(ZERO_GRAD))
    if optimizer is not None:
        calls = calls | Intervals.of_table(optimizer.calls)
    launched = kernels.events.launch >= 0
    result = np.zeros(len(kernels.events), dtype=np.bool_)
    result[launched] = calls.contains(launches.start_ns[kernels.events.launch[launched]])
    return result


RULE = TraceRule(
    id="small-kernel-swarm",
    needs=(Window, KernelOps),
    title="Unfused elementwise chains",
    fix="Fuse them: torch.compile the block",
    judge=judge,
    page=__doc__ or "",
    signs=ELEMENTWISE,
)
