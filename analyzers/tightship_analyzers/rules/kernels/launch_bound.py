"""Launch-bound: the device waits for the host to launch kernels.

## What it finds
Gaps of at most 1 ms that end with a kernel which was launched only after the device was idle, more than 10 % of
the step altogether, in a job whose median kernel takes less than 10 µs, or whose gaps outlast the kernels between
them: half of them, or those that cost the most.

## Why it costs
Dispatching an operator from Python takes 5 to 100 µs, a launch another 3 to 10. Where kernels are shorter than that the
device is idle between any two of them, however fast it is.

## Example
```python
model = SmallTransformer().to(device)
for batch in loader:                      # batch of 4
    train_step(model, batch)
```

## Use instead
```python
model = torch.compile(model, mode="reduce-overhead")   # records CUDA graphs
```
or a larger batch, or `torch.cuda.graph` around a step with fixed shapes.

The saving is these gaps, less 0.5 µs each that remain between the kernels of a CUDA graph. Its low end is half of
it: what a compiled model without graphs gives.

## Known misses
A host that is slow for another reason (input, a read of a value, a checkpoint, other code) is judged by the rules
on those.

## Source
https://developer.nvidia.com/blog/cuda-graphs/: 2.9 µs kernels take 9.6 µs each when waited for, 3.8 µs queued, 3.4 µs
in a graph, hence 0.5 µs. The TensorBoard plugin of the PyTorch profiler calls less than 50 % utilisation low.
"""

from __future__ import annotations

import numpy as np

from tightship_analyzers.facts.idle.dispatch_gaps import DispatchGaps
from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.vendor import Vendor
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import (
    claim,
    deepest,
    is_worth,
    mostly_in,
    one_place,
    per_step_suffix,
    share_of,
    time_of,
)
from tightship_analyzers.findings.evidence import change, fact
from tightship_analyzers.findings.model import Judgement, TraceRule
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.trace.columns import EventKind
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Int64s
from tightship_platform.units import format_ns, plural

MIN_STEP_FRAC = 0.10
"""Share of the step below which it is no finding."""
MAX_MEDIAN_NS = 10_000
"""Longer kernels hide the launch of the next one."""
MIN_GAPS_PER_STEP = 20
"""Fewer gaps are single events, not a way of working."""
RESIDUAL_NS = 500
"""Gap that stays between two kernels of a CUDA graph."""


def judge(facts: Facts) -> Judgement:
    """All gaps together, at the place that issues most of the late kernels."""
    gaps, kernels, window = facts[DispatchGaps], facts[KernelOps], facts[Window]
    computing = kernels.events.take(kernels.events.kind == EventKind.KERNEL)
    if not len(computing) or len(gaps.spans) < MIN_GAPS_PER_STEP * window.count:
        return []
    median_ns = int(np.median(computing.dur_ns))
    median_gap_ns = int(np.median(gaps.cost_ns))
    if median_ns >= MAX_MEDIAN_NS and median_gap_ns < median_ns and not _outlast(gaps, kernels):
        return []
    claims = Intervals.of(gaps.spans.start_ns + RESIDUAL_NS, gaps.spans.end_ns)
    if not is_worth(facts, claims, MIN_STEP_FRAC):
        return []
    where = one_place(facts, kernels.op[gaps.next_event], gaps.cost_ns, "kernel launches")
    return [
        claim(
            facts,
            RULE,
            claims,
            title=f"Launch-bound: the device waits {share_of(facts, claims)} for the host to launch kernels",
            where=where,
            fix='Launch less often: torch.compile(model, mode="reduce-overhead"), '
            f"a {facts[Vendor].graph}, or a larger batch",
            low_ns=claims.measure_ns // 2,
            high_ns=gaps.spans.measure_ns,
            gap="host dispatch",
            evidence=[
                fact(
                    f"{plural(len(computing) // window.count, 'kernel')} {per_step_suffix(facts)}, half of them "
                    f"shorter than {format_ns(median_ns)}",
                    median_ns,
                    "ns",
                ),
                fact(
                    f"{plural(len(gaps.spans) // window.count, 'gap')} {per_step_suffix(facts)}, "
                    f"{time_of(facts, claims.measure_ns)}",
                    len(gaps.spans),
                    "gaps",
                ),
                mostly_in(facts, kernels.op[gaps.next_event], gaps.cost_ns),
                deepest(facts, claims, where.place),
                change(
                    "model = Model().to(device)", 'model = torch.compile(Model().to(device), mode="reduce-overhead")'
                ),
            ],
            without=_graphed(gaps, kernels.row[gaps.next_event]),
        )
    ]


def _outlast(gaps: DispatchGaps, kernels: KernelOps) -> bool:
    """Most of the time is that of gaps longer than the work that follows: a part of the step is launch-bound."""
    longer = gaps.cost_ns > kernels.events.dur_ns[gaps.next_event]
    return 2 * int(gaps.cost_ns[longer].sum()) > int(gaps.cost_ns.sum())


def _graphed(gaps: DispatchGaps, rows: Int64s) -> Edits:
    """The late kernels follow their predecessors, and the host spends no time on the gaps."""
    edits = Edits.launched_together(rows)
    for tid, spans in gaps.by_thread.items():
        edits |= Edits.without_host(tid, spans)
    return edits


RULE = TraceRule(
    id="launch-bound",
    needs=(Window, KernelOps, DispatchGaps),
    title="Launch-bound: the device waits for the host to launch kernels",
    fix="Compile, capture graphs, or take a larger batch",
    judge=judge,
    page=__doc__ or "",
)
