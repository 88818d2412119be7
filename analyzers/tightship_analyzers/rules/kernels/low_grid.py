"""Kernels too small to fill the device.

## What it finds
Kernels of at least 10 µs with at most half as many thread blocks as the device has multiprocessors, while nothing else
runs; what stays empty is together more than 5 % of the step.

## Why it costs
A block runs on one multiprocessor. With 40 blocks on a device of 132, more than two thirds of it have nothing to do.

## Example
```python
for head in heads:                       # one small product per head
    out.append(head(x))
```

## Use instead
```python
out = torch.einsum("bi,hio->hbo", x, weights)   # all heads at once
```
or a larger batch; independent kernels may run side by side on two streams.

The saving of each kernel is 1 − blocks / multiprocessors of its time, as if its work were spread evenly; a bound, whose
low end is 0: what limits a kernel may be a chain of dependent operations.

## Known misses
Needs the grid in the trace (CUDA has it, ROCm does not). Persistent kernels choose their grid themselves and fill the
device with fewer, larger blocks; those with more than half as many are left out for that reason. Collectives use few
blocks on purpose.

## Source
NVIDIA, "GPU Performance Background User's Guide" (wave quantisation); Kineto records the grid of each kernel. 5 % of
the step.
"""

from __future__ import annotations

import numpy as np

from tightship_analyzers.facts.kernels.device_model import DeviceUnits
from tightship_analyzers.facts.kernels.kernel_ops import KernelOps, alone
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import (
    claim,
    costliest,
    gone,
    is_worth,
    mostly_in,
    share_of,
    time_of,
    within_window,
)
from tightship_analyzers.findings.evidence import change, fact
from tightship_analyzers.findings.model import Judgement, NotApplicable, TraceRule
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.trace.columns import EventKind
from tightship_platform.text import shown
from tightship_platform.units import plural

MIN_STEP_FRAC = 0.05
"""Share of the step below which it is no finding."""
MIN_KERNEL_NS = 10_000
"""Of a shorter kernel the launch is what costs."""


def judge(facts: Facts) -> Judgement:
    """All small kernels together, at the place that costs most."""
    kernels, device = facts[KernelOps], facts[DeviceUnits]
    events, units = kernels.events, device.units
    computes = events.kind == EventKind.KERNEL
    if not (events.blocks[computes] > 0).any():
        return NotApplicable("needs the grid of each kernel; the trace does not hold it")
    small = computes & device.half_empty(events.blocks)
    rows = np.flatnonzero(small & (events.dur_ns >= MIN_KERNEL_NS) & alone(events))
    mine = events.take(rows)
    left = mine.blocks / units
    claims = within_window(facts, gone(mine, 1 - left))
    if not is_worth(facts, claims, MIN_STEP_FRAC):
        return []
    lost_ns = np.rint(mine.dur_ns * (1 - left)).astype(np.int64)
    where = costliest(facts, kernels.op[rows], lost_ns, shown(facts.trace.names[int(mine.name[0])], 100))
    worst = int(mine.dur_ns.argmax())
    return [
        claim(
            facts,
            RULE,
            claims,
            title=f"Kernels too small to fill the device leave {share_of(facts, claims)} unused",
            where=where,
            fix="Give each kernel more work: a larger batch, one batched operator instead of many, or two streams",
            low_ns=0,
            evidence=[
                fact(
                    f"{plural(len(rows), 'kernel')}, {time_of(facts, int(mine.dur_ns.sum()))}, "
                    f"{plural(int(np.median(mine.blocks)), 'block')} (median) for {units} multiprocessors",
                    float(np.median(mine.blocks)),
                    "blocks",
                ),
                fact(f"The longest: {shown(facts.trace.names[int(mine.name[worst])], 100)}"),
                mostly_in(facts, kernels.op[rows], mine.dur_ns),
                change("out = [f(x) for x in parts]", "out = f(torch.stack(parts))"),
            ],
            without=Edits.without_device(kernels.row[rows], left),
        )
    ]


RULE = TraceRule(
    id="low-grid",
    needs=(Window, KernelOps, DeviceUnits),
    title="Kernels too small to fill the device",
    fix="Give each kernel more work",
    judge=judge,
    page=__doc__ or "",
)
